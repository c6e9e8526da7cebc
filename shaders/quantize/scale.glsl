// The bits of the smallest half that is not below a value of at most 65504, on every device the same. Integers do the
// rounding: packHalf2x16 may round either way, and a compiler may take what unpacks its result for the value itself.
uint half_above(float value) {
    if (value < 6.103515625e-5) {  // 2^-14, below which halves are multiples of 2^-24
        return uint(ceil(value * 16777216.0));
    }
    const uint rebiased = floatBitsToUint(value) - (112u << 23);
    return (rebiased + 0x1fffu) >> 13;
}

float magnitude(vec4 values[UNIT / 4]) {
    vec4 largest = vec4(0.0);
    [[unroll]] for (uint i = 0; i < UNIT / 4; i++) {
        largest = max(largest, abs(values[i]));
    }
    return max(max(largest.x, largest.y), max(largest.z, largest.w));
}

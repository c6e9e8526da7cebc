// To bfloat16, rounded to nearest, ties to even; what it can't hold becomes the largest one of its sign.
const uint LARGEST = 0x7f7f7fffu;  // the largest float that is not rounded to infinity

uint bits(float value) {
    const uint word = floatBitsToUint(value);
    const uint magnitude = min(word & 0x7fffffffu, LARGEST);
    return ((word & 0x80000000u) + magnitude + 0x7fffu + (magnitude >> 16 & 1u)) >> 16;
}

// The bits of the half that is nearest to a finite value of at most 65504 in magnitude, the even one of two, on every device
// the same: packHalf2x16 may round either way.
uint half_nearest(float value) {
    const uint bits = floatBitsToUint(value);
    const uint magnitude = bits & 0x7fffffffu;
    const uint sign = bits >> 16 & 0x8000u;
    if (magnitude < 0x38800000u) {  // 2^-14, below which halves are multiples of 2^-24
        return sign | uint(roundEven(uintBitsToFloat(magnitude) * 16777216.0));
    }
    const uint rebiased = magnitude - (112u << 23);
    return sign | (rebiased + 0xfffu + (rebiased >> 13 & 1u)) >> 13;
}

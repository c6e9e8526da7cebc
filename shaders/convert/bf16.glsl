// To bfloat16, rounded to nearest, ties to even; what it can't hold becomes the largest one of its sign.
#define DST_ELEMENT uint16_t

const uint LARGEST = 0x7f7f7fffu;  // the largest float that is not rounded to infinity

uint bits(float value) {
    const uint word = floatBitsToUint(value);
    const uint magnitude = min(word & 0x7fffffffu, LARGEST);
    return ((word & 0x80000000u) + magnitude + 0x7fffu + (magnitude >> 16 & 1u)) >> 16;
}

uint16_t narrowed(float value) {
    return uint16_t(bits(value));
}

uint pair(float low, float high) {
    return bits(low) | bits(high) << 16;
}

void store8(Blocks dst, uint block, Raw8 raw, vec4 low, vec4 high) {
    dst.v[block] = uvec4(pair(low.x, low.y), pair(low.z, low.w), pair(high.x, high.y), pair(high.z, high.w));
}

// To bfloat16, rounded to nearest, ties to even; what it can't hold becomes the largest one of its sign.
#define DST_ELEMENT uint16_t

#include "include/round_bf16.glsl"

uint16_t narrowed(float value) {
    return uint16_t(bits(value));
}

uint pair(float low, float high) {
    return bits(low) | bits(high) << 16;
}

void store8(Blocks dst, uint block, Raw8 raw, vec4 low, vec4 high) {
    dst.v[block] = uvec4(pair(low.x, low.y), pair(low.z, low.w), pair(high.x, high.y), pair(high.z, high.w));
}

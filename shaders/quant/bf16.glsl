// Elements in bfloat16, the upper half of a float: 8 of them in 16 bytes.

#define Raw8 uvec4

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Weights { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) readonly restrict buffer WeightElements { uint16_t v[]; };

Raw8 fetch8(Weights weights, uint index) {
    const u64vec2 words = weights.v[index];
    return uvec4(unpack32(words.x), unpack32(words.y));
}

void unpack8(Raw8 raw, out vec4 low, out vec4 high) {
    const uvec4 even = raw << 16;
    const uvec4 odd = raw & 0xffff0000u;
    low = uintBitsToFloat(uvec4(even.x, odd.x, even.y, odd.y));
    high = uintBitsToFloat(uvec4(even.z, odd.z, even.w, odd.w));
}

#include "include/half2.glsl"

// Saturates: what a half can't hold becomes the largest half of its sign.
uvec4 half8(Raw8 raw) {
    const vec4 even = clamp(uintBitsToFloat(raw << 16), -65504.0, 65504.0);
    const vec4 odd = clamp(uintBitsToFloat(raw & 0xffff0000u), -65504.0, 65504.0);
    return uvec4(half2(even.x, odd.x), half2(even.y, odd.y), half2(even.z, odd.z), half2(even.w, odd.w));
}

float fetch1(Weights weights, uint index) {
    return uintBitsToFloat(uint(WeightElements(weights).v[index]) << 16);
}

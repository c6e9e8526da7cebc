// Elements in single precision: 8 of them in 32 bytes.

struct Raw8 {
    vec4 low;
    vec4 high;
};

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Weights { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer WeightElements { float v[]; };

Raw8 fetch8(Weights weights, uint index) {
    return Raw8(weights.v[2 * index], weights.v[2 * index + 1]);
}

void unpack8(Raw8 raw, out vec4 low, out vec4 high) {
    low = raw.low;
    high = raw.high;
}

#include "include/half2.glsl"

// Saturates: what a half can't hold becomes the largest half of its sign.
uvec4 half8(Raw8 raw) {
    const vec4 low = clamp(raw.low, -65504.0, 65504.0);
    const vec4 high = clamp(raw.high, -65504.0, 65504.0);
    return uvec4(half2(low.x, low.y), half2(low.z, low.w), half2(high.x, high.y), half2(high.z, high.w));
}

float fetch1(Weights weights, uint index) {
    return WeightElements(weights).v[index];
}

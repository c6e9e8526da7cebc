// Brings rows into half precision: xh = x / scale, where scale is the power of two that puts the row's largest magnitude
// into [2^13, 2^14). Nothing overflows, and what is smaller than 2^-27 of the largest is all that rounding may flush.
// A workgroup owns one row. The first also makes the counters zero with which linear_many_coopmat joins its splits.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require

#include "include/half2.glsl"

layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint MAX_SUBGROUPS = 256;
layout(local_size_x = 256, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Input { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Halves { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Scales { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Counters { uint v[]; };

layout(push_constant, scalar) uniform P {
    Input x;       // (tokens, k)
    Halves xh;     // (tokens, k)
    Scales scale;  // (tokens)
    Counters counters;  // (num_counters)
    uint k;             // a multiple of 8
    uint num_counters;
} p;

shared float maxima[MAX_SUBGROUPS];

float largest_magnitude(uint row_block) {
    float largest = 0.0;
    for (uint block = gl_LocalInvocationID.x; block < p.k / 4; block += WORKGROUP) {
        const vec4 values = abs(p.x.v[row_block + block]);
        largest = max(largest, max(max(values.x, values.y), max(values.z, values.w)));
    }
    largest = subgroupMax(largest);
    if (subgroupElect()) {
        maxima[gl_SubgroupID] = largest;
    }
    barrier();
    for (uint s = 0; s < gl_NumSubgroups; s++) {
        largest = max(largest, maxima[s]);
    }
    return largest;
}

void main() {
    const uint row_block = gl_WorkGroupID.x * (p.k / 4);
    const int exponent = int(floatBitsToUint(largest_magnitude(row_block)) >> 23) - 127;
    // Both powers must be normal floats, whatever the row holds.
    const int shift = clamp(13 - exponent, -113, 113);
    const float factor = uintBitsToFloat(uint(127 + shift) << 23);
    if (gl_LocalInvocationID.x == 0) {
        p.scale.v[gl_WorkGroupID.x] = uintBitsToFloat(uint(127 - shift) << 23);
    }
    if (gl_WorkGroupID.x == 0) {
        for (uint i = gl_LocalInvocationID.x; i < p.num_counters; i += WORKGROUP) {
            p.counters.v[i] = 0;
        }
    }
    for (uint block = gl_LocalInvocationID.x; block < p.k / 8; block += WORKGROUP) {
        const vec4 low = p.x.v[row_block + 2 * block] * factor;
        const vec4 high = p.x.v[row_block + 2 * block + 1] * factor;
        p.xh.v[row_block / 2 + block] =
            uvec4(half2(low.x, low.y), half2(low.z, low.w), half2(high.x, high.y), half2(high.z, high.w));
    }
}

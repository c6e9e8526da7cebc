// Rows in half precision with a scale each: xh = x / scale, where scale is the power of two that puts the row's largest
// magnitude into [2^13, 2^14). Nothing overflows, and what is smaller than 2^-27 of the largest is all that rounding may
// flush. Who writes rows also makes the counters zero with which matrix kernels join their splits.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require

#include "include/half2.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer OutValues { uvec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer OutScales { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer OutCounters { uint v[]; };

const bool NEEDS_LARGEST = true;

// The scale's exponent. Both the power and its inverse must be normal floats, whatever the row holds.
int row_exponent(float largest) {
    return clamp(int(floatBitsToUint(largest) >> 23) - 127 - 13, -113, 113);
}

float power_of_two(int exponent) {
    return uintBitsToFloat(uint(127 + exponent) << 23);
}

uvec2 scaled_halves(vec4 values, float largest) {
    values *= power_of_two(-row_exponent(largest));
    return uvec2(half2(values.x, values.y), half2(values.z, values.w));
}

void finish_row(OutScales scales, OutCounters counters, uint row, uint num_counters, uint lane, uint lanes, float largest) {
    if (lane == 0) {
        scales.v[row] = power_of_two(row_exponent(largest));
    }
    if (row == 0) {
        for (uint i = lane; i < num_counters; i += lanes) {
            counters.v[i] = 0;
        }
    }
}

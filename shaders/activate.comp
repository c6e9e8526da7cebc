#version 460
// An activation of each element, written in the form that who reads it wants. A workgroup owns WORKGROUP times VECTORS times four
// columns (along x) of one row (along y); the whole row where the form needs its largest magnitude.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/activation.glsl"
#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint FUNCTION = 0; // 0: tanh, 1: sigmoid, 2: the square of what is above zero
layout(constant_id = 2) const uint VECTORS = 1;

layout(push_constant, scalar) uniform P {
    Vec4s x; // (tokens, 4 * columns)
    OutValues y; // (tokens, 4 * columns)
    OutScales y_scale;
    OutCounters counters;
    uint columns; // in vec4s
    uint num_counters;
} p;

vec4 function(vec4 x) {
    if (FUNCTION == 0)
        return 2 * sigmoid_times(vec4(1), 2 * x) - 1; // tanh, whose exponentials do not overflow
    if (FUNCTION == 1)
        return sigmoid_times(vec4(1), x);
    return max(x, 0) * max(x, 0);
}

void main() {
    uint row = gl_WorkGroupID.y;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint first = gl_WorkGroupID.x * WORKGROUP * VECTORS + lane;
    vec4 values[VECTORS];
    vec4 sizes = vec4(0);
    [[unroll]] for (uint n = 0; n < VECTORS; ++n) {
        values[n] = function((p.x + uint64_t(row) * p.columns + min(first + n * WORKGROUP, p.columns - 1)).v);
        sizes = max(sizes, abs(values[n]));
    }
    float largest = NEEDS_LARGEST ? workgroup_max(max(max(sizes.x, sizes.y), max(sizes.z, sizes.w))) : 0;
    [[unroll]] for (uint n = 0; n < VECTORS; ++n) {
        uint i = first + n * WORKGROUP;
        if (i < p.columns)
            store_part(p.y, p.y_scale, row, p.columns, i, values[n], largest);
    }
    finish_row(p.y_scale, p.counters, row, p.num_counters, lane, WORKGROUP, largest);
}

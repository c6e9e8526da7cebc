#version 460
// RMSNorm of x * silu(gate) over groups of a row's columns, written in the form that who reads it wants. A workgroup owns one row, of
// which a lane holds VECTORS times four elements.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/activation.glsl"
#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint VECTORS = 1;
layout(constant_id = 2) const uint GROUPS = 1;

layout(push_constant, scalar) uniform P {
    Vec4s x; // (tokens, 4 * columns)
    Vec4s gate; // (tokens, 4 * row_columns): gates first
    Vec4s weight; // (4 * columns)
    OutValues y; // (tokens, 4 * columns)
    OutScales y_scale;
    OutCounters counters;
    uint columns; // in vec4s
    uint row_columns;
    uint num_counters;
    float eps;
} p;

void main() {
    uint row = gl_WorkGroupID.x, size = p.columns / GROUPS;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    vec4 values[VECTORS];
    float scales[VECTORS];
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = min(lane + v * WORKGROUP, p.columns - 1);
        values[v] = (p.x + uint64_t(row) * p.columns + i).v * act(1, (p.gate + uint64_t(row) * p.row_columns + i).v);
        scales[v] = 0;
    }
    [[dont_unroll]] for (uint group = 0; group < GROUPS; ++group) {
        float squares = 0;
        [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
            uint i = lane + v * WORKGROUP;
            squares += i < p.columns && i / size == group ? dot(values[v], values[v]) : 0;
        }
        float scale = inversesqrt(workgroup_sum(squares) / float(4 * size) + p.eps);
        [[unroll]] for (uint v = 0; v < VECTORS; ++v)
            if (min(lane + v * WORKGROUP, p.columns - 1) / size == group)
                scales[v] = scale;
    }
    vec4 sizes = vec4(0);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        values[v] *= scales[v] * (p.weight + min(lane + v * WORKGROUP, p.columns - 1)).v;
        sizes = max(sizes, abs(values[v]));
    }
    float largest = NEEDS_LARGEST ? workgroup_max(max(max(sizes.x, sizes.y), max(sizes.z, sizes.w))) : 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        if (i < p.columns)
            store_part(p.y, p.y_scale, row, p.columns, i, values[v], largest);
    }
    finish_row(p.y_scale, p.counters, row, p.num_counters, lane, WORKGROUP, largest);
}

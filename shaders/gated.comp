#version 460
// Gated activation of an FFN: act(gate) * up, written in the form that who reads it wants. A workgroup owns WORKGROUP times
// VECTORS times four columns (along x) of one row (along y); the whole row where the form needs its largest magnitude.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/activation.glsl"
#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ACT = 0; // of include/activation.glsl
layout(constant_id = 2) const uint VECTORS = 1;

layout(push_constant, scalar) uniform P {
    Vec4s gate_up; // (tokens, 2, 4 * columns): gate, then up
    OutValues y; // (tokens, 4 * columns)
    OutScales y_scale;
    OutCounters counters;
    uint columns; // in vec4s
    uint num_counters;
} p;

void main() {
    uint row = gl_WorkGroupID.y;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint first = gl_WorkGroupID.x * WORKGROUP * VECTORS + lane;
    Vec4s gate = p.gate_up + uint64_t(row) * (2 * p.columns);
    // All loads are under way before the first is waited for; past the end, the last column stands in.
    vec4 values[VECTORS], ups[VECTORS];
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = min(first + v * WORKGROUP, p.columns - 1);
        values[v] = (gate + i).v;
        ups[v] = (gate + i + p.columns).v;
    }
    vec4 sizes = vec4(0);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        values[v] = glu(ACT, values[v], ups[v]);
        sizes = max(sizes, abs(values[v]));
    }
    float largest = NEEDS_LARGEST ? workgroup_max(max(max(sizes.x, sizes.y), max(sizes.z, sizes.w))) : 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = first + v * WORKGROUP;
        if (i < p.columns)
            store_part(p.y, p.y_scale, row, p.columns, i, values[v], largest);
    }
    finish_row(p.y_scale, p.counters, row, p.num_counters, lane, WORKGROUP, largest);
}

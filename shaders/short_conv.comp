#version 460
// Gated short convolution over a sequence's tokens, C * (conv(B * x) + bias), written in the form that who reads it wants. What
// B * x was before the step is in the sequence's state. A workgroup owns WORKGROUP times VECTORS times four columns (along x)
// of one row (along y); the whole row where the form needs its largest magnitude.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"
#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint TAPS = 3;
layout(constant_id = 2) const uint VECTORS = 1;
layout(constant_id = 3) const uint HAS_BIAS = 0;

layout(push_constant, scalar) uniform P {
    Vec4s projected; // (tokens, 3, 4 * columns): B, C, x
    Floats taps; // (4 * columns, TAPS), the oldest first
    Vec4s bias; // (4 * columns)
    Vec4s state; // (states, TAPS - 1, 4 * columns): B * x, the oldest first
    Runs runs; // (tokens)
    Uints positions; // (tokens)
    OutValues y; // (tokens, 4 * columns)
    OutScales y_scale;
    OutCounters counters;
    uint columns; // in vec4s
    uint num_counters;
} p;

vec4 tap(uint column, uint number) {
    Floats at = p.taps + uint64_t(4 * column) * TAPS + number;
    return vec4(at.v, (at + TAPS).v, (at + 2 * TAPS).v, (at + 3 * TAPS).v);
}

void main() {
    uint row = gl_WorkGroupID.y;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint first = gl_WorkGroupID.x * WORKGROUP * VECTORS + lane;
    Run run = (p.runs + row).v;
    bool is_padding = run.state_index == NO_STATE;
    uint offset = run.offset & ~LAST_OF_RUN, position = (p.positions + row).v;
    Vec4s here = p.projected + uint64_t(row) * (3 * p.columns);
    Vec4s before = p.state + uint64_t(is_padding ? 0 : run.source) * ((TAPS - 1) * p.columns);
    vec4 values[VECTORS];
    vec4 sizes = vec4(0);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = min(first + v * WORKGROUP, p.columns - 1);
        vec4 sum = HAS_BIAS != 0 ? (p.bias + i).v : vec4(0);
        [[unroll]] for (uint back = TAPS; back-- > 0;) {
            vec4 product = vec4(0);
            if (is_padding || back > position) {
                // nothing comes before a sequence's first token
            } else if (back <= offset) {
                Vec4s at = here - uint64_t(back) * (3 * p.columns) + i;
                product = at.v * (at + 2 * p.columns).v;
            } else {
                product = (before + uint64_t(TAPS - 1 - (back - offset)) * p.columns + i).v;
            }
            sum = fma(tap(i, TAPS - 1 - back), product, sum);
        }
        values[v] = (here + p.columns + i).v * sum;
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

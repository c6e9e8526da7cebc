#version 460
// What Mamba-2's recurrence reads: silu(conv(x) + bias) over a sequence's tokens. What x was before the step is in the sequence's
// state. A workgroup owns WORKGROUP times four columns (along x) of one row (along y).
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"
#include "include/activation.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint TAPS = 4;
layout(constant_id = 2) const bool HAS_BIAS = true;

layout(push_constant, scalar) uniform P {
    Vec4s projected; // (tokens, 4 * row_columns): x first
    Floats taps; // (4 * columns, TAPS), the oldest first
    Vec4s bias; // (4 * columns)
    uint64_t state; // of each sequence state_bytes, of which the first are (TAPS - 1, 4 * columns): x, the oldest first
    Runs runs; // (tokens)
    Uints positions; // (tokens)
    Vec4s y; // (tokens, 4 * columns)
    uint columns; // in vec4s
    uint row_columns;
    uint state_bytes;
} p;

vec4 tap(uint column, uint number) {
    Floats at = p.taps + uint64_t(4 * column) * TAPS + number;
    return vec4(at.v, (at + TAPS).v, (at + 2 * TAPS).v, (at + 3 * TAPS).v);
}

void main() {
    uint row = gl_WorkGroupID.y, i = gl_GlobalInvocationID.x;
    Run run = (p.runs + row).v;
    if (run.state_index == NO_STATE || i >= p.columns)
        return;
    uint offset = run.offset & ~LAST_OF_RUN, position = (p.positions + row).v;
    Vec4s here = p.projected + uint64_t(row) * p.row_columns + i;
    Vec4s before = Vec4s(p.state + uint64_t(run.source) * p.state_bytes) + i;
    vec4 sum = HAS_BIAS ? (p.bias + i).v : vec4(0);
    [[unroll]] for (uint back = TAPS; back-- > 0;) {
        vec4 x = vec4(0);
        if (back > position) {
            // nothing comes before a sequence's first token
        } else if (back <= offset) {
            x = (here - uint64_t(back) * p.row_columns).v;
        } else {
            x = (before + uint64_t(TAPS - 1 - (back - offset)) * p.columns).v;
        }
        sum = fma(tap(i, TAPS - 1 - back), x, sum);
    }
    (p.y + uint64_t(row) * p.columns + i).v = act(1, sum);
}

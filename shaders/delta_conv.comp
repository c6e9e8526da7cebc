#version 460
// What the gated delta rule reads: silu(conv(x)) over a sequence's tokens, for queries and keys of length 1, queries times
// Q_SCALE. What x was before the step is in the sequence's state. A workgroup owns one head (along x: those of queries, of
// keys, of values) of one row (along y), of which a lane holds VECTORS times four elements.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"
#include "include/activation.glsl"
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint TAPS = 4;
layout(constant_id = 2) const uint VECTORS = 1;
layout(constant_id = 3) const uint KEY_HEADS = 1;
layout(constant_id = 4) const uint KEY_VECTORS = 32; // of a head of queries or keys
layout(constant_id = 5) const uint VALUE_VECTORS = 32;
layout(constant_id = 6) const float Q_SCALE = 1;

layout(push_constant, scalar) uniform P {
    Vec4s projected; // (tokens, 4 * row_columns): x first
    Floats taps; // (4 * columns, TAPS), the oldest first
    uint64_t state; // of each sequence state_bytes, of which the first are (TAPS - 1, 4 * columns): x, the oldest first
    Runs runs; // (tokens)
    Uints positions; // (tokens)
    Vec4s y; // (tokens, 4 * columns)
    uint columns; // in vec4s
    uint row_columns;
    uint state_bytes;
} p;

const uint KEY_COLUMNS = KEY_HEADS * KEY_VECTORS;

vec4 tap(uint column, uint number) {
    Floats at = p.taps + uint64_t(4 * column) * TAPS + number;
    return vec4(at.v, (at + TAPS).v, (at + 2 * TAPS).v, (at + 3 * TAPS).v);
}

void main() {
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    Run run = (p.runs + row).v;
    if (run.state_index == NO_STATE)
        return;
    bool has_length = head < 2 * KEY_HEADS;
    uint first = has_length ? head * KEY_VECTORS : 2 * KEY_COLUMNS + (head - 2 * KEY_HEADS) * VALUE_VECTORS;
    uint count = has_length ? KEY_VECTORS : VALUE_VECTORS;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint offset = run.offset & ~LAST_OF_RUN, position = (p.positions + row).v;
    Vec4s here = p.projected + uint64_t(row) * p.row_columns;
    Vec4s before = Vec4s(p.state + uint64_t(run.source) * p.state_bytes);
    vec4 values[VECTORS];
    float squares = 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = first + min(lane + v * WORKGROUP, count - 1);
        vec4 sum = vec4(0);
        [[unroll]] for (uint back = TAPS; back-- > 0;) {
            vec4 x = vec4(0);
            if (back > position) {
                // nothing comes before a sequence's first token
            } else if (back <= offset) {
                x = (here - uint64_t(back) * p.row_columns + i).v;
            } else {
                x = (before + uint64_t(TAPS - 1 - (back - offset)) * p.columns + i).v;
            }
            sum = fma(tap(i, TAPS - 1 - back), x, sum);
        }
        values[v] = act(1, sum);
        if (lane + v * WORKGROUP < count)
            squares += dot(values[v], values[v]);
    }
    float scale = 1;
    if (has_length)
        scale = inversesqrt(workgroup_sum(squares) + 1e-6) * (head < KEY_HEADS ? Q_SCALE : 1);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        if (i < count)
            (p.y + uint64_t(row) * p.columns + first + i).v = values[v] * scale;
    }
}

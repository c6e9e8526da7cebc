#version 460
// Mixes of a token's row x with the row before it of its sequence, which a step's first one finds in the sequence's state: MIXES
// times x + (before - x) * mix. A workgroup owns WORKGROUP times four columns (along x) of one row (along y).
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint MIXES = 1;

layout(push_constant, scalar) uniform P {
    Vec4s x; // (tokens, 4 * columns)
    Vec4s mixes; // (MIXES, 4 * columns)
    uint64_t state; // of each sequence state_bytes, which begin with the last row, (4 * columns)
    Runs runs; // (tokens)
    Uints positions; // (tokens)
    Vec4s y; // (MIXES, tokens, 4 * columns)
    uint columns; // in vec4s
    uint state_bytes;
    uint num_rows;
} p;

void main() {
    uint row = gl_WorkGroupID.y, i = gl_GlobalInvocationID.x;
    if (i >= p.columns)
        return;
    Run run = (p.runs + row).v;
    uint64_t at = uint64_t(row) * p.columns + i;
    vec4 x = (p.x + at).v, before;
    if (run.state_index == NO_STATE || (p.positions + row).v == 0)
        before = vec4(0); // nothing comes before a sequence's first token
    else if ((run.offset & ~LAST_OF_RUN) != 0)
        before = (p.x + at - p.columns).v;
    else
        before = (Vec4s(p.state + uint64_t(run.source) * p.state_bytes) + i).v;
    [[unroll]] for (uint mix = 0; mix < MIXES; ++mix)
        (p.y + (uint64_t(mix) * p.num_rows * p.columns + at)).v = fma(before - x, (p.mixes + mix * p.columns + i).v, x);
}

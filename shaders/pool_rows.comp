#version 460
// Adds a step's rows of hidden states to the sums of the sequences that they belong to. A workgroup owns LANES columns of one
// part: rows of one sequence that follow each other.
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/pool.glsl"

const uint LANES = 64;
layout(local_size_x = LANES) in; // grid: (columns / LANES, parts)

layout(push_constant, scalar) uniform P {
    Floats x; // (tokens, columns)
    Pools parts; // (parts)
    Floats sums; // (states, columns)
    uint columns;
} p;

void main() {
    Pool part = (p.parts + gl_WorkGroupID.y).v;
    uint column = gl_GlobalInvocationID.x;
    if (part.state_index == NO_STATE || column >= p.columns)
        return;
    Floats row = p.x + (uint64_t(part.row) * p.columns + column);
    Floats total = p.sums + (uint64_t(part.state_index) * p.columns + column);
    float sum = 0;
    for (uint i = 0; i < part.num_rows; ++i)
        sum += (row + uint64_t(i) * p.columns).v;
    total.v = (part.flags & BEGINS) != 0 ? sum : total.v + sum;
}

#version 460
// Makes an embedding of a sequence's sums: their mean, or its first columns, to the length of 1 where that is wanted. A
// workgroup owns one part, and does nothing unless its sequence ends with it.
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/pool.glsl"
#include "reduce/workgroup.glsl"

const uint LANES = 256;
layout(local_size_x = LANES) in; // grid: (parts)

layout(push_constant, scalar) uniform P {
    Floats sums; // (states, columns)
    Pools parts; // (parts)
    Floats y; // (parts, columns)
    uint columns;
} p;

void main() {
    Pool part = (p.parts + gl_WorkGroupID.x).v;
    if (part.state_index == NO_STATE || (part.flags & ENDS) == 0)
        return;
    Floats sums = p.sums + uint64_t(part.state_index) * p.columns;
    Floats y = p.y + uint64_t(gl_WorkGroupID.x) * p.columns;
    float scale = part.scale;
    if ((part.flags & NORMALISES) != 0) {
        float squares = 0;
        for (uint i = gl_LocalInvocationID.x; i < part.dimensions; i += LANES) {
            float mean = (sums + i).v * part.scale;
            squares += mean * mean;
        }
        squares = workgroup_sum(squares);
        scale *= squares > 0 ? 1 / sqrt(squares) : 0;
    }
    for (uint i = gl_LocalInvocationID.x; i < part.dimensions; i += LANES)
        (y + i).v = (sums + i).v * scale;
}

#version 460
// Joins the splits of attention_decode. One workgroup owns one query head (x) of one item (y).
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/attention.glsl"
#include "include/attention_splits.glsl"
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEAD_DIM = 64;
layout(constant_id = 2) const uint TILE = 64;
layout(constant_id = 3) const uint MAX_SPLITS = 32;

layout(push_constant, scalar) uniform P {
    Floats partials; // (items, num_heads, MAX_SPLITS, HEAD_DIM + 4)
    Floats y; // (tokens, num_heads, HEAD_DIM)
    Uints items; // (items): the sequence's row
    Uints query_start; // (sequences)
    Uints context_len; // (sequences)
    uint window;
} p;

const uint ROW = HEAD_DIM + 4;

shared float weights[MAX_SPLITS];

void main() {
    uint item = gl_WorkGroupID.y;
    uint head = gl_WorkGroupID.x;
    uint num_heads = gl_NumWorkGroups.x;
    uint sequence = (p.items + item).v;
    uint context = (p.context_len + sequence).v;
    uint splits = num_splits(context - first_key(context, p.window), TILE, MAX_SPLITS);
    if (splits == 1)
        return; // attention_decode wrote the result itself

    Floats partial = p.partials + uint64_t((item * num_heads + head) * MAX_SPLITS) * ROW;
    float highest = -1e30;
    for (uint i = gl_LocalInvocationID.x; i < splits; i += WORKGROUP)
        highest = max(highest, (partial + i * ROW + HEAD_DIM).v);
    highest = workgroup_max(highest);
    float sum = 0;
    for (uint i = gl_LocalInvocationID.x; i < splits; i += WORKGROUP) {
        weights[i] = exp((partial + i * ROW + HEAD_DIM).v - highest);
        sum += weights[i] * (partial + i * ROW + HEAD_DIM + 1).v;
    }
    sum = workgroup_sum(sum);
    barrier();

    uint token = (p.query_start + sequence).v;
    Floats y = p.y + uint64_t(token * num_heads + head) * HEAD_DIM;
    for (uint d = gl_LocalInvocationID.x; d < HEAD_DIM; d += WORKGROUP) {
        float value = 0;
        for (uint i = 0; i < splits; ++i)
            value += weights[i] * (partial + i * ROW + d).v;
        (y + d).v = value / sum;
    }
}

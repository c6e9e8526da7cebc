#version 460
// Joins the splits of attention_decode. One workgroup owns one query head (x) of one item (y); its lanes share the splits, and
// each has four neighbouring elements of some of them. All loads are under way before the first barrier.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/attention.glsl"
#include "include/attention_splits.glsl"
#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32; // HEAD_DIM / 4 or more
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEAD_DIM = 64;
layout(constant_id = 2) const uint TILE = 64;
layout(constant_id = 3) const uint MAX_SPLITS = 32;

layout(push_constant, scalar) uniform P {
    Vec4s partials; // (items, num_heads, MAX_SPLITS, HEAD_DIM + 4)
    OutValues y; // (tokens, num_heads, HEAD_DIM), in the form, as attention_decode leaves it
    OutScales y_scale;
    Uints items; // (items): the sequence's row
    Uints query_start; // (sequences)
    Uints context_len; // (sequences)
    uint window;
} p;

const uint COLUMNS = HEAD_DIM / 4;
const uint ROW = COLUMNS + 1;
const uint PARTS = WORKGROUP / COLUMNS; // of the splits, as many as there are lanes for
const uint ROUNDS = (MAX_SPLITS + PARTS - 1) / PARTS;
const uint STATES = (MAX_SPLITS + WORKGROUP - 1) / WORKGROUP;
const float LOWEST = -1e30;

shared float weights[MAX_SPLITS];
shared vec4 joined[WORKGROUP];

void main() {
    uint item = gl_WorkGroupID.y;
    uint head = gl_WorkGroupID.x;
    uint num_heads = gl_NumWorkGroups.x;
    uint sequence = (p.items + item).v;
    uint context = (p.context_len + sequence).v;
    uint splits = num_splits(context - first_key(context, p.window), TILE, MAX_SPLITS);
    if (splits == 1)
        return; // attention_decode wrote the result itself

    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint part = lane / COLUMNS, column = lane % COLUMNS;
    Vec4s partial = p.partials + uint64_t((item * num_heads + head) * MAX_SPLITS) * ROW;
    vec4 states[STATES]; // a split's maximum and its sum
    [[unroll]] for (uint r = 0; r < STATES; ++r)
        states[r] = (partial + min(lane + r * WORKGROUP, splits - 1) * ROW + COLUMNS).v;
    vec4 values[ROUNDS];
    [[unroll]] for (uint r = 0; r < ROUNDS; ++r)
        if (r * PARTS < splits)
            values[r] = (partial + min(part + r * PARTS, splits - 1) * ROW + column).v;

    float highest = LOWEST;
    [[unroll]] for (uint r = 0; r < STATES; ++r)
        highest = max(highest, states[r].x);
    highest = workgroup_max(highest);
    float sum = 0;
    [[unroll]] for (uint r = 0; r < STATES; ++r) {
        uint i = lane + r * WORKGROUP;
        if (i < splits) {
            weights[i] = exp(states[r].x - highest);
            sum += weights[i] * states[r].y;
        }
    }
    sum = workgroup_sum(sum);
    barrier();

    vec4 value = vec4(0);
    [[unroll]] for (uint r = 0; r < ROUNDS; ++r) {
        uint i = part + r * PARTS;
        if (i < splits)
            value += weights[i] * values[r];
    }
    joined[lane] = value;
    barrier();
    if (part > 0)
        return;
    for (uint i = 1; i < PARTS; ++i)
        value += joined[i * COLUMNS + column];
    uint token = (p.query_start + sequence).v;
    store_output(p.y, p.y_scale, token, num_heads * COLUMNS, head * COLUMNS + column, value / sum);
}

#version 460
// Gates what heads have found, norm(x) * silu(gate) or x * sigmoid(gate), written in the form that who reads it wants. A workgroup
// owns one row, of which a lane holds VECTORS times four elements.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/activation.glsl"
#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint VECTORS = 1;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint HEAD_VECTORS = 8;
layout(constant_id = 4) const bool WITH_NORM = false; // RMSNorm of each head, and silu in place of sigmoid
layout(constant_id = 5) const bool ONE_GATE = false; // for all of a head

layout(push_constant, scalar) uniform P {
    Vec4s x; // (tokens, HEADS, HEAD_VECTORS)
    uint64_t gate; // (tokens, row_columns) vec4s, of which each head's begin head_columns apart; with ONE_GATE (tokens, HEADS) floats
    Vec4s weight; // (HEAD_VECTORS)
    OutValues y; // (tokens, HEADS, HEAD_VECTORS)
    OutScales y_scale;
    OutCounters counters;
    uint row_columns;
    uint head_columns;
    uint num_counters;
    float eps;
} p;

const uint COLUMNS = HEADS * HEAD_VECTORS;
shared float scales[HEADS];

void main() {
    uint row = gl_WorkGroupID.x;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    Vec4s x = p.x + uint64_t(row) * COLUMNS;
    if (WITH_NORM) {
        for (uint head = gl_SubgroupID; head < HEADS; head += gl_NumSubgroups) {
            float squares = 0;
            for (uint i = gl_SubgroupInvocationID; i < HEAD_VECTORS; i += gl_SubgroupSize) {
                vec4 value = (x + head * HEAD_VECTORS + i).v;
                squares += dot(value, value);
            }
            float scale = inversesqrt(subgroupAdd(squares) / float(4 * HEAD_VECTORS) + p.eps);
            if (subgroupElect())
                scales[head] = scale;
        }
        barrier();
    }
    vec4 values[VECTORS];
    vec4 sizes = vec4(0);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = min(lane + v * WORKGROUP, COLUMNS - 1);
        uint head = i / HEAD_VECTORS, at = i % HEAD_VECTORS;
        vec4 gate;
        if (ONE_GATE)
            gate = vec4((Floats(p.gate) + uint64_t(row) * HEADS + head).v);
        else
            gate = (Vec4s(p.gate) + uint64_t(row) * p.row_columns + head * p.head_columns + at).v;
        vec4 value = (x + i).v;
        if (WITH_NORM)
            values[v] = value * scales[head] * (p.weight + at).v * act(1, gate);
        else
            values[v] = sigmoid_times(value, gate);
        sizes = max(sizes, abs(values[v]));
    }
    float largest = NEEDS_LARGEST ? workgroup_max(max(max(sizes.x, sizes.y), max(sizes.z, sizes.w))) : 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        if (i < COLUMNS)
            store_part(p.y, p.y_scale, row, COLUMNS, i, values[v], largest);
    }
    finish_row(p.y_scale, p.counters, row, p.num_counters, lane, WORKGROUP, largest);
}

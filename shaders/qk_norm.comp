#version 460
// RMSNorm of a step's queries, and of its keys, over all heads of a token, in place. One workgroup owns the queries (x = 0) or
// the keys (x = 1) of one token (y), of which a lane holds VECTORS times four elements.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint VECTORS = 1;

layout(push_constant, scalar) uniform P {
    Vec4s qkv; // (tokens, 4 * row_columns): queries, keys, values
    Vec4s q_weight; // (4 * q_columns)
    Vec4s k_weight; // (4 * k_columns)
    uint q_columns; // in vec4s, as the others
    uint k_columns;
    uint row_columns;
    float eps;
} p;

void main() {
    bool is_q = gl_WorkGroupID.x == 0;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint columns = is_q ? p.q_columns : p.k_columns;
    Vec4s weight = is_q ? p.q_weight : p.k_weight;
    Vec4s row = p.qkv + (uint64_t(gl_WorkGroupID.y) * p.row_columns + (is_q ? 0 : p.q_columns));

    vec4 values[VECTORS];
    float squares = 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        values[v] = i < columns ? (row + i).v : vec4(0);
        squares += dot(values[v], values[v]);
    }
    float scale = inversesqrt(workgroup_sum(squares) / float(4 * columns) + p.eps);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        if (i < columns)
            (row + i).v = values[v] * scale * (weight + i).v;
    }
}

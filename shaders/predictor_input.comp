#version 460
// What a predictor of a further token reads of a row, side by side: norm(embedding) * weight, then norm(hidden) * weight. One
// workgroup owns one row, of which a lane holds VECTORS times four elements of either.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint VECTORS = 1;
layout(constant_id = 2) const bool PLUS_ONE = false; // weights count from 1

layout(push_constant, scalar) uniform P {
    Vec4s embedding; // (tokens, 4 * columns)
    Vec4s hidden; // (tokens, 4 * columns)
    Vec4s embedding_weight; // (4 * columns)
    Vec4s hidden_weight; // (4 * columns)
    Vec4s y; // (tokens, 2, 4 * columns)
    uint columns; // in vec4s
    float eps;
} p;

void normalise(Vec4s x, Vec4s weight, Vec4s y) {
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    vec4 values[VECTORS];
    float squares = 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        values[v] = i < p.columns ? (x + i).v : vec4(0);
        squares += dot(values[v], values[v]);
    }
    float scale = inversesqrt(workgroup_sum(squares) / float(4 * p.columns) + p.eps);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        if (i < p.columns)
            (y + i).v = values[v] * scale * (PLUS_ONE ? 1 + (weight + i).v : (weight + i).v);
    }
}

void main() {
    uint64_t at = uint64_t(gl_WorkGroupID.x) * p.columns;
    normalise(p.embedding + at, p.embedding_weight, p.y + 2 * at);
    normalise(p.hidden + at, p.hidden_weight, p.y + (2 * at + p.columns));
}

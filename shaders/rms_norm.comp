#version 460
// RMSNorm of rows after a residual addition. One workgroup owns one row; each lane rereads only what it wrote itself.
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint RESIDUAL = 0; // 0: h = x, 1: h = hidden + x, 2: h = hidden + norm(x) * post_weight
layout(constant_id = 2) const bool WITH_NORM = true; // y = norm(h) * weight; otherwise only hidden = h
layout(constant_id = 3) const bool WITH_ROWS = false; // y's row i is made of row rows[i], and hidden is left alone
layout(constant_id = 4) const bool PLUS_ONE = false; // weights count from 1

layout(push_constant, scalar) uniform P {
    Vec4s x; // (tokens, 4 * columns)
    Vec4s hidden; // (tokens, 4 * columns)
    Vec4s post_weight; // (4 * columns)
    Vec4s weight; // (4 * columns)
    Vec4s y; // (tokens or selected rows, 4 * columns)
    Uints rows; // (selected rows)
    uint columns; // in vec4s
    float eps;
} p;

float inverse_rms(float squares) {
    return inversesqrt(squares / float(4 * p.columns) + p.eps);
}

vec4 scaled(vec4 value, vec4 weight) {
    return value * (PLUS_ONE ? 1 + weight : weight);
}

void main() {
    uint row = gl_WorkGroupID.x;
    Vec4s y = p.y + uint64_t(row) * p.columns;
    if (WITH_ROWS)
        row = (p.rows + row).v;
    Vec4s x = p.x + uint64_t(row) * p.columns;
    Vec4s hidden = p.hidden + uint64_t(row) * p.columns;
    Vec4s sum = WITH_ROWS ? y : hidden; // where h waits for its norm

    float post_scale = 0;
    if (RESIDUAL == 2) {
        float squares = 0;
        for (uint i = gl_LocalInvocationID.x; i < p.columns; i += WORKGROUP) {
            vec4 value = (x + i).v;
            squares += dot(value, value);
        }
        post_scale = inverse_rms(workgroup_sum(squares));
    }

    float squares = 0;
    for (uint i = gl_LocalInvocationID.x; i < p.columns; i += WORKGROUP) {
        vec4 value = (x + i).v;
        if (RESIDUAL == 2)
            value = scaled(value * post_scale, (p.post_weight + i).v);
        if (RESIDUAL != 0) {
            value += (hidden + i).v;
            (sum + i).v = value;
        }
        squares += dot(value, value);
    }
    if (!WITH_NORM)
        return;

    float scale = inverse_rms(workgroup_sum(squares));
    for (uint i = gl_LocalInvocationID.x; i < p.columns; i += WORKGROUP) {
        vec4 value = RESIDUAL == 0 ? (x + i).v : (sum + i).v;
        (y + i).v = scaled(value * scale, (p.weight + i).v);
    }
}

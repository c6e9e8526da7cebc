#version 460
// Gated activation of an FFN: act(gate) * up. One invocation owns four columns of one row (workgroup y).
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/activation.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ACT = 0; // of include/activation.glsl

layout(push_constant, scalar) uniform P {
    Vec4s gate_up; // (tokens, 2, 4 * columns): gate, then up
    Vec4s y; // (tokens, 4 * columns)
    uint columns; // in vec4s
} p;

void main() {
    uint column = gl_GlobalInvocationID.x;
    if (column >= p.columns)
        return;
    Vec4s gate = p.gate_up + uint64_t(gl_WorkGroupID.y) * (2 * p.columns) + column;
    vec4 up = (gate + p.columns).v;
    (p.y + uint64_t(gl_WorkGroupID.y) * p.columns + column).v = act(ACT, gate.v) * up;
}

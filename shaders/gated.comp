#version 460
// Gated activation of an FFN: act(gate) * up. One invocation owns four columns of one row (workgroup y).
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ACT = 0; // 0: GELU by tanh, 1: SiLU

layout(push_constant, scalar) uniform P {
    Vec4s gate_up; // (tokens, 2, 4 * columns): gate, then up
    Vec4s y; // (tokens, 4 * columns)
    uint columns; // in vec4s
} p;

// value * sigmoid(x); exp's argument is bounded, so that nothing overflows
vec4 sigmoid_times(vec4 value, vec4 x) {
    return value / (1 + exp(min(-x, 80.0)));
}

vec4 act(vec4 gate) {
    if (ACT == 1)
        return sigmoid_times(gate, gate);
    // 0.5 * (1 + tanh(u)) = sigmoid(2 * u), which needs no tanh
    vec4 bounded = clamp(gate, -100.0, 100.0);
    return sigmoid_times(gate, 1.5957691216057308 * (bounded + 0.044715 * bounded * bounded * bounded));
}

void main() {
    uint column = gl_GlobalInvocationID.x;
    if (column >= p.columns)
        return;
    Vec4s gate = p.gate_up + uint64_t(gl_WorkGroupID.y) * (2 * p.columns) + column;
    vec4 up = (gate + p.columns).v;
    (p.y + uint64_t(gl_WorkGroupID.y) * p.columns + column).v = act(gate.v) * up;
}

#version 460
// y (T, N): the outputs of each token's K experts, times their weights and added up from the first to the last, and with
// HAS_SHARED what all tokens' expert has made, times the sigmoid of a logit if it IS_GATED. A lane owns four columns.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(constant_id = 1) const uint K = 2;
layout(constant_id = 2) const bool HAS_SHARED = false;
layout(constant_id = 3) const bool IS_GATED = false;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(push_constant, scalar) uniform P {
    Vec4s outputs;  // (tokens, K, 4 * columns)
    Floats weights; // (tokens, K)
    Vec4s shared_output; // (tokens, 4 * columns), read if HAS_SHARED
    Floats gates;   // (tokens, gate_stride), of which the first is read if IS_GATED
    Vec4s y;        // (tokens, 4 * columns)
    uint columns;   // in vec4s
    uint gate_stride;
} p;

void main() {
    const uint column = gl_GlobalInvocationID.x;
    const uint token = gl_WorkGroupID.y;
    if (column >= p.columns) {
        return;
    }
    vec4 sum = vec4(0);
    [[unroll]] for (uint slot = 0; slot < K; slot++) {
        sum += (p.weights + (token * K + slot)).v * (p.outputs + ((token * K + slot) * p.columns + column)).v;
    }
    if (HAS_SHARED) {
        vec4 own = (p.shared_output + (token * p.columns + column)).v;
        if (IS_GATED) {
            own /= 1 + exp(min(-(p.gates + token * p.gate_stride).v, 80.0));
        }
        sum += own;
    }
    (p.y + (token * p.columns + column)).v = sum;
}

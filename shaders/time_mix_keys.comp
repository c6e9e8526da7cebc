#version 460
// What RWKV-7's recurrence reads of a token, in place of what products have left: a head's decay, its key, the direction that it
// takes out of the state and what comes in for that, and its value, blended with that of the first layer. A workgroup owns one head
// (along x) of one row (along y).
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/activation.glsl"
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 16;
layout(local_size_x = 16, local_size_x_id = 0) in;
layout(constant_id = 1) const uint VECTORS = 1; // of a lane
layout(constant_id = 2) const uint HEAD_VECTORS = 16;
layout(constant_id = 3) const bool BLENDS = true; // else these values are the first layer's, which are kept

layout(push_constant, scalar) uniform P {
    Vec4s w; // (tokens, 4 * columns): what the decay is made of, and then that
    Vec4s k; // the same: the key, and then what is added of it
    Vec4s a; // the same: the rate before its sigmoid, and then rate * direction
    Vec4s v; // the same: the value
    Vec4s direction; // the same: the key times k_k, of length 1
    Vec4s blend; // the same: before its sigmoid
    Vec4s first; // the same: values of the first layer
    Vec4s k_k; // (4 * columns)
    Vec4s k_a; // (4 * columns)
    uint columns; // in vec4s
} p;

const float MOST_DECAY = 0.6065306597126334; // exp(-1 / 2): exp(-exp(-softplus(-w) - 1 / 2)) is exp(-MOST_DECAY * sigmoid(w))
const float SHORTEST = 1e-12;

vec4 sigmoid(vec4 x) {
    return sigmoid_times(vec4(1), x);
}

void main() {
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint base = gl_WorkGroupID.x * HEAD_VECTORS;
    uint64_t row = uint64_t(gl_WorkGroupID.y) * p.columns;
    vec4 directions[VECTORS];
    float squares = 0;
    [[unroll]] for (uint n = 0; n < VECTORS; ++n) {
        uint at = lane + n * WORKGROUP;
        directions[n] = at < HEAD_VECTORS ? (p.k + row + base + at).v * (p.k_k + base + at).v : vec4(0);
        squares += dot(directions[n], directions[n]);
    }
    float scale = 1 / max(sqrt(workgroup_sum(squares)), SHORTEST);
    [[unroll]] for (uint n = 0; n < VECTORS; ++n) {
        if (lane + n * WORKGROUP >= HEAD_VECTORS)
            break;
        uint i = base + lane + n * WORKGROUP;
        vec4 rate = sigmoid((p.a + row + i).v), direction = directions[n] * scale;
        (p.w + row + i).v = exp(-MOST_DECAY * sigmoid((p.w + row + i).v));
        (p.k + row + i).v *= fma(rate - 1, (p.k_a + i).v, vec4(1));
        (p.a + row + i).v = rate * direction;
        (p.direction + row + i).v = direction;
        vec4 value = (p.v + row + i).v;
        if (BLENDS)
            (p.v + row + i).v = fma((p.first + row + i).v - value, sigmoid((p.blend + row + i).v), value);
        else
            (p.first + row + i).v = value;
    }
}

// y (T, N) = x (T, K) · weight (N, K)^T + bias (N) in single precision, for many tokens and few weight rows.
// A workgroup owns TILE_T tokens (along x) and TILE_N weight rows (along y). PARTS groups of its lanes share K, a block of 8
// columns at a time; each lane of a group has LANE_T × LANE_N of its sums, which all groups add up in the end.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include FORMAT
#include "include/soft_cap.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;  // PARTS * (TILE_T / LANE_T) * (TILE_N / LANE_N)
layout(constant_id = 1) const uint TILE_T = 16;
layout(constant_id = 2) const uint TILE_N = 32;
layout(constant_id = 3) const uint LANE_T = 4;
layout(constant_id = 4) const uint LANE_N = 4;
layout(constant_id = 5) const bool HAS_BIAS = false;
layout(constant_id = 6) const bool HAS_SOFT_CAP = false;
layout(constant_id = 7) const uint PARTS = 2;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Input { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Bias { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };

layout(push_constant, scalar) uniform P {
    Input x;         // (tokens, k)
    Weights weight;  // (n, k)
    Bias bias;       // (n), read if HAS_BIAS
    Output y;        // (tokens, stride)
    uint tokens;
    uint n;
    uint k;          // a multiple of 8
    uint stride;
    float soft_cap;  // used if HAS_SOFT_CAP
} p;

const uint STEP_T = TILE_T / LANE_T;  // a lane's tokens and rows lie apart, so that neighbours read neighbouring ones
const uint STEP_N = TILE_N / LANE_N;
const uint TILE = TILE_T * TILE_N;

shared float partials[PARTS * TILE];

void add_part(uint part, uint lane_t, uint lane_n) {
    const uint blocks = p.k / 8;
    uint tokens[LANE_T];  // where rows begin, in vec4s
    uint rows[LANE_N];    // in blocks
    [[unroll]] for (uint i = 0; i < LANE_T; i++) {
        tokens[i] = min(gl_WorkGroupID.x * TILE_T + lane_t + i * STEP_T, p.tokens - 1) * blocks * 2;
    }
    [[unroll]] for (uint j = 0; j < LANE_N; j++) {
        rows[j] = min(gl_WorkGroupID.y * TILE_N + lane_n + j * STEP_N, p.n - 1) * blocks;
    }
    float sums[LANE_T * LANE_N];
    [[unroll]] for (uint i = 0; i < LANE_T * LANE_N; i++) {
        sums[i] = 0.0;
    }
    for (uint block = part; block < blocks; block += PARTS) {
        vec4 lows[LANE_N];
        vec4 highs[LANE_N];
        [[unroll]] for (uint j = 0; j < LANE_N; j++) {
            unpack8(fetch8(p.weight, rows[j] + block), lows[j], highs[j]);
        }
        [[unroll]] for (uint i = 0; i < LANE_T; i++) {
            const vec4 low = p.x.v[tokens[i] + block * 2];
            const vec4 high = p.x.v[tokens[i] + block * 2 + 1];
            [[unroll]] for (uint j = 0; j < LANE_N; j++) {
                sums[i * LANE_N + j] += dot(lows[j], low) + dot(highs[j], high);
            }
        }
    }
    [[unroll]] for (uint i = 0; i < LANE_T; i++) {
        [[unroll]] for (uint j = 0; j < LANE_N; j++) {
            partials[part * TILE + (lane_t + i * STEP_T) * TILE_N + lane_n + j * STEP_N] = sums[i * LANE_N + j];
        }
    }
}

void main() {
    const uint lane = gl_LocalInvocationID.x % (STEP_T * STEP_N);
    add_part(gl_LocalInvocationID.x / (STEP_T * STEP_N), lane / STEP_N, lane % STEP_N);
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < TILE; i += WORKGROUP) {
        const uint token = gl_WorkGroupID.x * TILE_T + i / TILE_N;
        const uint row = gl_WorkGroupID.y * TILE_N + i % TILE_N;
        if (token >= p.tokens || row >= p.n) {
            continue;
        }
        float value = HAS_BIAS ? p.bias.v[row] : 0.0;
        [[unroll]] for (uint part = 0; part < PARTS; part++) {
            value += partials[part * TILE + i];
        }
        p.y.v[token * p.stride + row] = HAS_SOFT_CAP ? soft_cap(value, p.soft_cap) : value;
    }
}

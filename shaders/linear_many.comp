// y (T, N) = x (T, K) · weight (N, K)^T + bias (N), for many tokens, in single precision.
// A workgroup owns TILE_T tokens (along x) and TILE_N weight rows (along y); each lane LANE_T × LANE_N of these.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include FORMAT
#include "include/soft_cap.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;  // TILE_T / LANE_T * (TILE_N / LANE_N)
layout(constant_id = 1) const uint TILE_T = 32;
layout(constant_id = 2) const uint TILE_N = 32;
layout(constant_id = 3) const uint LANE_T = 4;
layout(constant_id = 4) const uint LANE_N = 4;
layout(constant_id = 5) const bool HAS_BIAS = false;
layout(constant_id = 6) const bool HAS_SOFT_CAP = false;
layout(local_size_x = 64, local_size_x_id = 0) in;

const uint TILE_K = 16;
const uint BLOCKS_K = TILE_K / 8;

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

// One element more a row than needed, or all lanes would write to the same bank.
shared float inputs[TILE_K * (TILE_T + 1)];   // (TILE_K, TILE_T + 1)
shared float weights[TILE_K * (TILE_N + 1)];  // (TILE_K, TILE_N + 1)

void load_inputs(uint first_token, uint first_block) {
    for (uint i = gl_LocalInvocationID.x; i < TILE_T * BLOCKS_K; i += WORKGROUP) {
        const uint t = i / BLOCKS_K;
        const uint block = first_block + i % BLOCKS_K;
        vec4 low = vec4(0.0);
        vec4 high = vec4(0.0);
        if (block < p.k / 8) {
            const uint at = (min(first_token + t, p.tokens - 1) * (p.k / 8) + block) * 2;
            low = p.x.v[at];
            high = p.x.v[at + 1];
        }
        const uint to = i % BLOCKS_K * 8 * (TILE_T + 1) + t;
        [[unroll]] for (uint j = 0; j < 4; j++) {
            inputs[to + j * (TILE_T + 1)] = low[j];
            inputs[to + (j + 4) * (TILE_T + 1)] = high[j];
        }
    }
}

void load_weights(uint first_row, uint first_block) {
    for (uint i = gl_LocalInvocationID.x; i < TILE_N * BLOCKS_K; i += WORKGROUP) {
        const uint r = i / BLOCKS_K;
        const uint block = first_block + i % BLOCKS_K;
        vec4 low = vec4(0.0);
        vec4 high = vec4(0.0);
        if (block < p.k / 8) {
            unpack8(fetch8(p.weight, min(first_row + r, p.n - 1) * (p.k / 8) + block), low, high);
        }
        const uint to = i % BLOCKS_K * 8 * (TILE_N + 1) + r;
        [[unroll]] for (uint j = 0; j < 4; j++) {
            weights[to + j * (TILE_N + 1)] = low[j];
            weights[to + (j + 4) * (TILE_N + 1)] = high[j];
        }
    }
}

void main() {
    const uint first_token = gl_WorkGroupID.x * TILE_T;
    const uint first_row = gl_WorkGroupID.y * TILE_N;
    // A lane's tokens and rows lie apart, so that neighbours read neighbouring words of shared memory.
    const uint step_t = TILE_T / LANE_T;
    const uint step_n = TILE_N / LANE_N;
    const uint lane_t = gl_LocalInvocationID.x / step_n;
    const uint lane_n = gl_LocalInvocationID.x % step_n;
    float sums[LANE_T * LANE_N];
    [[unroll]] for (uint i = 0; i < LANE_T * LANE_N; i++) {
        sums[i] = 0.0;
    }
    for (uint first_block = 0; first_block < p.k / 8; first_block += BLOCKS_K) {
        load_inputs(first_token, first_block);
        load_weights(first_row, first_block);
        barrier();
        for (uint k = 0; k < TILE_K; k++) {
            float row_values[LANE_N];
            [[unroll]] for (uint j = 0; j < LANE_N; j++) {
                row_values[j] = weights[k * (TILE_N + 1) + lane_n + j * step_n];
            }
            [[unroll]] for (uint i = 0; i < LANE_T; i++) {
                const float value = inputs[k * (TILE_T + 1) + lane_t + i * step_t];
                [[unroll]] for (uint j = 0; j < LANE_N; j++) {
                    sums[i * LANE_N + j] = fma(value, row_values[j], sums[i * LANE_N + j]);
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint i = 0; i < LANE_T; i++) {
        [[unroll]] for (uint j = 0; j < LANE_N; j++) {
            const uint token = first_token + lane_t + i * step_t;
            const uint row = first_row + lane_n + j * step_n;
            if (token < p.tokens && row < p.n) {
                float value = sums[i * LANE_N + j];
                if (HAS_BIAS) {
                    value += p.bias.v[row];
                }
                if (HAS_SOFT_CAP) {
                    value = soft_cap(value, p.soft_cap);
                }
                p.y.v[token * p.stride + row] = value;
            }
        }
    }
}

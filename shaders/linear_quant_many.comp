// y (T, N) = x (T, K) · weight (N, K)^T + bias (N) for quantised weights and many tokens, by integer dot products.
// A workgroup owns TILE_T tokens (along x) and TILE_N weight rows (along y); each lane LANE_T × LANE_N of these.
#version 460
#extension GL_GOOGLE_include_directive : require

#include BLOCKS
#include "include/block_dot.glsl"
#include "include/soft_cap.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;  // TILE_T / LANE_T * (TILE_N / LANE_N)
layout(constant_id = 1) const uint TILE_T = 32;
layout(constant_id = 2) const uint TILE_N = 32;
layout(constant_id = 3) const uint LANE_T = 4;
layout(constant_id = 4) const uint LANE_N = 4;
layout(constant_id = 5) const bool HAS_BIAS = false;
layout(constant_id = 6) const bool HAS_SOFT_CAP = false;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Bias { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };

layout(push_constant, scalar) uniform P {
    InputCodes x;         // (tokens, 2, blocks, 16) bytes
    InputScales x_scale;  // (tokens, blocks)
    Quants quants;        // (n, blocks)
    High high;            // (n, blocks)
    Scales scales;        // (n, blocks)
    Bias bias;            // (n), read if HAS_BIAS
    Output y;             // (tokens, stride)
    uint tokens;
    uint n;
    uint blocks;          // k / 32
    uint stride;
    float soft_cap;       // used if HAS_SOFT_CAP
} p;

// Groups of 16 lie in two planes, so that neighbouring lanes read neighbouring words.
shared uvec4 input_codes[2 * TILE_T];
shared uvec4 weight_codes[2 * TILE_N];
shared float input_scales[TILE_T];
shared ivec2 input_sums[TILE_T];
shared vec2 weight_scales[TILE_N];
shared Offset weight_offsets[TILE_N];

void load(uint first_token, uint first_row, uint block) {
    for (uint t = gl_LocalInvocationID.x; t < TILE_T; t += WORKGROUP) {
        const InputBlock x = fetch_input(p.x, p.x_scale, min(first_token + t, p.tokens - 1), p.blocks, block);
        input_codes[t] = x.first;
        input_codes[TILE_T + t] = x.second;
        input_scales[t] = x.scale;
        input_sums[t] = x.sums;
    }
    for (uint r = gl_LocalInvocationID.x; r < TILE_N; r += WORKGROUP) {
        const uint at = min(first_row + r, p.n - 1) * p.blocks + block;
        uvec4 first, second;
        unpack_codes(fetch_codes(p.quants, p.high, at), first, second);
        weight_codes[r] = first;
        weight_codes[TILE_N + r] = second;
        unpack_scale(fetch_scale(p.scales, at), at, weight_scales[r], weight_offsets[r]);
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
    for (uint block = 0; block < p.blocks; block++) {
        load(first_token, first_row, block);
        barrier();
        [[unroll]] for (uint i = 0; i < LANE_T; i++) {
            const uint t = lane_t + i * step_t;
            const InputBlock x =
                InputBlock(input_codes[t], input_codes[TILE_T + t], input_scales[t], input_sums[t]);
            [[unroll]] for (uint j = 0; j < LANE_N; j++) {
                const uint r = lane_n + j * step_n;
                sums[i * LANE_N + j] += block_dot(weight_codes[r], weight_codes[TILE_N + r], weight_scales[r],
                                                  weight_offsets[r], x);
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

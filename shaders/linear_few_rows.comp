// y (T, N) = x (T, K) · weight (N, K)^T + bias (N) in single precision, for many tokens and few weight rows.
// A workgroup owns TILE_T tokens (along x) and TILE_N weight rows (along y), and stages TILE_K columns of both at a time; those
// that follow come from memory meanwhile. PARTS groups of its lanes share the columns, a vec4 at a time; each lane of a group has
// LANE_T × LANE_N of its sums, which all groups add up in the end.
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
layout(constant_id = 7) const uint PARTS = 2;  // a power of two
layout(constant_id = 8) const uint TILE_K = 64;  // PARTS vec4s or a multiple
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
const uint GROUP = STEP_T * STEP_N;
const uint VECTORS = TILE_K / 4;
const uint ROW = VECTORS + 1;  // neighbouring rows begin in other banks
const uint STAGED = (TILE_T + TILE_N) * VECTORS;
const uint LOADS = (STAGED + WORKGROUP - 1) / WORKGROUP;
const uint SUMS = (LANE_T * LANE_N + 3) / 4;  // in vec4s
const uint TILES = (TILE_T + TILE_N) * ROW;
const uint PARTIALS = PARTS / 2 * GROUP * SUMS;

// First (TILE_T + TILE_N, ROW), tokens before rows of weights; in the end (PARTS / 2, SUMS, GROUP)
shared vec4 staged[TILES > PARTIALS ? TILES : PARTIALS];

vec4 sums[SUMS];
vec4 ahead[LOADS];  // what follows the staged columns

// Lane i and every WORKGROUP-th after it bring in a vec4 of a row each; behind the end of K there are zeros.
void fetch(uint first_vector) {
    const uint vectors = p.k / 4;
    [[unroll]] for (uint load = 0; load < LOADS; load++) {
        const uint i = gl_LocalInvocationID.x + load * WORKGROUP;
        const uint row = i / VECTORS;
        const uint vector = first_vector + i % VECTORS;
        ahead[load] = vec4(0.0);
        if (i < STAGED && vector < vectors) {
            if (row < TILE_T) {
                ahead[load] = p.x.v[min(gl_WorkGroupID.x * TILE_T + row, p.tokens - 1) * vectors + vector];
            } else {
                ahead[load] = p.weight.v[min(gl_WorkGroupID.y * TILE_N + row - TILE_T, p.n - 1) * vectors + vector];
            }
        }
    }
}

void stage() {
    [[unroll]] for (uint load = 0; load < LOADS; load++) {
        const uint i = gl_LocalInvocationID.x + load * WORKGROUP;
        if (i < STAGED) {
            staged[i / VECTORS * ROW + i % VECTORS] = ahead[load];
        }
    }
}

void multiply(uint part, uint lane_t, uint lane_n) {
    [[dont_unroll]] for (uint v = part; v < VECTORS; v += PARTS) {
        vec4 rows[LANE_N];
        [[unroll]] for (uint j = 0; j < LANE_N; j++) {
            rows[j] = staged[(TILE_T + lane_n + j * STEP_N) * ROW + v];
        }
        [[unroll]] for (uint i = 0; i < LANE_T; i++) {
            const vec4 token = staged[(lane_t + i * STEP_T) * ROW + v];
            [[unroll]] for (uint c = 0; c < 4; c++) {  // outside of j, so that no sum waits for its last one
                [[unroll]] for (uint j = 0; j < LANE_N; j++) {
                    const uint s = i * LANE_N + j;
                    sums[s / 4][s % 4] = fma(rows[j][c], token[c], sums[s / 4][s % 4]);
                }
            }
        }
    }
}

// Half of the groups give their sums to the other half, until one group has them all.
void add_parts(uint part, uint lane) {
    [[unroll]] for (uint left = PARTS / 2; left > 0; left /= 2) {
        const uint at = part % left * SUMS * GROUP + lane;
        if (part >= left && part < 2 * left) {
            [[unroll]] for (uint s = 0; s < SUMS; s++) {
                staged[at + s * GROUP] = sums[s];
            }
        }
        barrier();
        if (part < left) {
            [[unroll]] for (uint s = 0; s < SUMS; s++) {
                sums[s] += staged[at + s * GROUP];
            }
        }
        barrier();
    }
}

void store(uint lane_t, uint lane_n) {
    [[unroll]] for (uint i = 0; i < LANE_T; i++) {
        [[unroll]] for (uint j = 0; j < LANE_N; j++) {
            const uint token = gl_WorkGroupID.x * TILE_T + lane_t + i * STEP_T;
            const uint row = gl_WorkGroupID.y * TILE_N + lane_n + j * STEP_N;
            if (token < p.tokens && row < p.n) {
                const uint s = i * LANE_N + j;
                const float value = sums[s / 4][s % 4] + (HAS_BIAS ? p.bias.v[row] : 0.0);
                p.y.v[token * p.stride + row] = HAS_SOFT_CAP ? soft_cap(value, p.soft_cap) : value;
            }
        }
    }
}

void main() {
    const uint part = gl_LocalInvocationID.x / GROUP;
    const uint lane = gl_LocalInvocationID.x % GROUP;
    [[unroll]] for (uint s = 0; s < SUMS; s++) {
        sums[s] = vec4(0.0);
    }
    fetch(0);
    for (uint first = 0; first < p.k / 4; first += VECTORS) {
        stage();
        barrier();
        fetch(first + VECTORS);
        multiply(part, lane / STEP_N, lane % STEP_N);
        barrier();
    }
    add_parts(part, lane);
    if (part == 0) {
        store(lane / STEP_N, lane % STEP_N);
    }
}

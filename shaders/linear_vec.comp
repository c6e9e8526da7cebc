// y (T, N) = x (T, K) · weight (N, K)^T + bias (N), for few tokens: the weights are read once for TOKENS tokens.
// A workgroup owns PASSES times ROWS weight rows (counted along x, then y) for TOKENS tokens (z), and takes ROWS of them at a
// time; its lanes share K among them. PREFETCH: meanwhile the rows that follow come from memory.
// GATED: the weight's first half of rows makes gates, the second what they are for, and y (T, N / 2) = act(gate) * up;
// half of a workgroup's rows are gates, and the others belong to them.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require

#include FORMAT
#include "include/activation.glsl"
#include "include/prefetch.glsl"
#include "include/soft_cap.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(constant_id = 1) const uint ROWS = 2;
layout(constant_id = 2) const uint TOKENS = 1;
layout(constant_id = 3) const uint MAX_SUBGROUPS = 32;  // 1: the workgroup is one subgroup, and needs no barrier
layout(constant_id = 4) const bool HAS_BIAS = false;
layout(constant_id = 5) const bool HAS_SOFT_CAP = false;
layout(constant_id = 6) const bool GATED = false;
layout(constant_id = 7) const uint ACT = 0;  // of include/activation.glsl
layout(constant_id = 8) const uint PASSES = 1;  // more only where MAX_SUBGROUPS is 1
layout(constant_id = 9) const uint PREFETCH = 0;  // bytes of a weight; 0: nothing is
layout(local_size_x = 32, local_size_x_id = 0) in;

// In words of 64 bits, as the weights are.
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Input { u64vec2 v[]; };
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

const uint OUTPUTS = GATED ? ROWS / 2 : ROWS;  // of a token
const uint SUMS = ROWS * TOKENS;
const uint UP = OUTPUTS * TOKENS;  // where the sums begin that gates are for

shared float partials[MAX_SUBGROUPS * SUMS];

vec4 floats(u64vec2 words) {
    return uintBitsToFloat(uvec4(unpack32(words.x), unpack32(words.y)));
}

void store(uint token, uint row, float value, float up) {
    const uint rows = GATED ? p.n / 2 : p.n;
    if (token >= p.tokens || row >= rows) {
        return;
    }
    if (HAS_BIAS) {
        value += p.bias.v[row];
    }
    if (HAS_SOFT_CAP) {
        value = soft_cap(value, p.soft_cap);
    }
    if (GATED) {
        value = glu(ACT, vec4(value), vec4(up)).x;
    }
    p.y.v[token * p.stride + row] = value;
}

float sums[SUMS];

// Adds the products of one block of each row.
void add(Raw8 raws[ROWS], uint first_token, uint block, uint blocks) {
    vec4 lows[ROWS];
    vec4 highs[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        unpack8(raws[r], lows[r], highs[r]);
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        const uint at = (min(first_token + t, p.tokens - 1) * blocks + block) * 2;
        const vec4 low = floats(p.x.v[at]);
        const vec4 high = floats(p.x.v[at + 1]);
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            sums[r * TOKENS + t] += dot(lows[r], low) + dot(highs[r], high);
        }
    }
}

// Begins to bring in OUTPUTS rows; returns what `prefetch` does.
uint prefetch_rows(uint first_row, uint end_row) {
    const uint num_rows = min(first_row + OUTPUTS, end_row) - min(first_row, end_row);
    const uint row_bytes = p.k * PREFETCH;
    return prefetch(uint64_t(p.weight) + uint64_t(first_row) * row_bytes, num_rows * row_bytes);
}

void multiply(uint first_row, uint first_token) {
    const uint blocks = p.k / 8;
    uint weight_rows[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = first_row + r % OUTPUTS + (r < OUTPUTS ? 0 : p.n / 2);
        weight_rows[r] = min(row, p.n - 1) * blocks;
    }
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    for (uint block = gl_LocalInvocationID.x; block < blocks; block += WORKGROUP) {
        Raw8 raws[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            raws[r] = fetch8(p.weight, weight_rows[r] + block);
        }
        add(raws, first_token, block, blocks);
    }
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = subgroupAdd(sums[i]);
        if (MAX_SUBGROUPS > 1 && subgroupElect()) {
            partials[gl_SubgroupID * SUMS + i] = sums[i];
        }
    }
    if (MAX_SUBGROUPS == 1) {
        [[unroll]] for (uint i = 0; i < UP; i++) {
            if (gl_LocalInvocationID.x == i % WORKGROUP) {
                store(first_token + i % TOKENS, first_row + i / TOKENS, sums[i], GATED ? sums[i + UP] : 0.0);
            }
        }
    } else {
        barrier();
        for (uint i = gl_LocalInvocationID.x; i < UP; i += WORKGROUP) {
            float sum = 0.0;
            float up = 0.0;
            for (uint s = 0; s < gl_NumSubgroups; s++) {
                sum += partials[s * SUMS + i];
                if (GATED) {
                    up += partials[s * SUMS + i + UP];
                }
            }
            store(first_token + i % TOKENS, first_row + i / TOKENS, sum, up);
        }
    }
}

void main() {
    const uint num_rows = GATED ? p.n / 2 : p.n;
    const uint first = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * OUTPUTS * PASSES;
    uint touched = 0;
    for (uint pass = 0; pass < PASSES; pass++) {
        const uint first_row = first + pass * OUTPUTS;
        if (first_row >= num_rows) {
            break;
        }
        if (PREFETCH > 0) {
            touched += prefetch_rows(first_row + OUTPUTS, num_rows);
            if (GATED) {
                touched += prefetch_rows(num_rows + first_row + OUTPUTS, p.n);
            }
        }
        multiply(first_row, gl_WorkGroupID.z * TOKENS);
    }
    if (PREFETCH > 0 && p.n == 0) {  // it never is, but the compiler can't know and leaves the loads alone
        p.y.v[0] = float(touched);
    }
}

// y (T, N) = x (T, K) · weight (N, K)^T + bias (N) for quantised weights and few tokens, by integer dot products: the
// weights are read once for TOKENS tokens. A workgroup owns ROWS weight rows (counted along x, then y) for TOKENS tokens
// (z); its lanes share the blocks of K among them. GATED: the weight's first half of rows makes gates, the second what they
// are for, and y (T, N / 2) = act(gate) * up; half of a workgroup's rows are gates, and the others belong to them.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require

#include BLOCKS
#include "include/activation.glsl"
#include "include/block_dot.glsl"
#include "include/soft_cap.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(constant_id = 1) const uint ROWS = 2;
layout(constant_id = 2) const uint TOKENS = 1;
layout(constant_id = 3) const uint MAX_SUBGROUPS = 32;  // 1: the workgroup is one subgroup, and needs no barrier
layout(constant_id = 4) const bool HAS_BIAS = false;
layout(constant_id = 5) const bool HAS_SOFT_CAP = false;
layout(constant_id = 6) const bool GATED = false;
layout(constant_id = 7) const uint ACT = 0;  // of include/activation.glsl
layout(local_size_x = 32, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Bias { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };

layout(push_constant, scalar) uniform P {
    InputCodes x;         // (tokens, blocks, 32) bytes
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

const uint OUTPUTS = GATED ? ROWS / 2 : ROWS;  // of a token
const uint SUMS = ROWS * TOKENS;
const uint UP = OUTPUTS * TOKENS;  // where the sums begin that gates are for

shared float partials[MAX_SUBGROUPS * SUMS];

void store(uint token, uint row, float value, float up) {
    if (token >= p.tokens || row >= (GATED ? p.n / 2 : p.n)) {
        return;
    }
    if (HAS_BIAS) {
        value += p.bias.v[row];
    }
    if (HAS_SOFT_CAP) {
        value = soft_cap(value, p.soft_cap);
    }
    if (GATED) {
        value = act(ACT, vec4(value)).x * up;
    }
    p.y.v[token * p.stride + row] = value;
}

void main() {
    const uint first_row = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * OUTPUTS;
    const uint first_token = gl_WorkGroupID.z * TOKENS;
    if (first_row >= (GATED ? p.n / 2 : p.n)) {
        return;
    }
    uint weight_rows[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = first_row + r % OUTPUTS + (r < OUTPUTS ? 0 : p.n / 2);
        weight_rows[r] = min(row, p.n - 1) * p.blocks;
    }
    float sums[SUMS];
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    for (uint block = gl_LocalInvocationID.x; block < p.blocks; block += WORKGROUP) {
        Codes codes[ROWS];
        Scale raw_scales[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            codes[r] = fetch_codes(p.quants, p.high, weight_rows[r] + block);
            raw_scales[r] = fetch_scale(p.scales, weight_rows[r] + block);
        }
        uvec4 firsts[ROWS];
        uvec4 seconds[ROWS];
        vec2 scales[ROWS];
        float offsets[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            unpack_codes(codes[r], firsts[r], seconds[r]);
            unpack_scale(raw_scales[r], weight_rows[r] + block, scales[r], offsets[r]);
        }
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            const InputBlock x = fetch_input(p.x, p.x_scale, min(first_token + t, p.tokens - 1) * p.blocks + block);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                sums[r * TOKENS + t] += block_dot(firsts[r], seconds[r], scales[r], offsets[r], x);
            }
        }
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

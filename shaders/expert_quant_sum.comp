// y (tokens, N) = the sum over a token's K experts of weight * (x · weights^T), with quantised weights, by integer dot products.
// A workgroup owns ROWS weight rows (counted along x, then y) of all experts of a token (z): its lanes share what these have of
// blocks, expert after expert. With HAS_SHARED what all tokens' expert has made is added, times the sigmoid of a logit if it
// IS_GATED.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require

#include BLOCKS
#include "include/block_dot.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(constant_id = 1) const uint ROWS = 2;
layout(constant_id = 2) const uint K = 2;
layout(constant_id = 3) const uint MAX_SUBGROUPS = 32;  // 1: the workgroup is one subgroup, and needs no barrier
layout(constant_id = 4) const bool HAS_SHARED = false;
layout(constant_id = 5) const bool IS_GATED = false;
layout(constant_id = 6) const bool HAS_BIAS = false;
layout(local_size_x = 32, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Chosen { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Floats { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };

layout(push_constant, scalar) uniform P {
    InputCodes x;         // (tokens * K, 2, blocks, 16) bytes
    InputScales x_scale;  // (tokens * K, blocks)
    Quants quants;        // (rows, blocks)
    High high;            // (rows, blocks)
    Scales scales;        // (rows, blocks)
    Output y;             // (tokens, n)
    Chosen chosen;        // (tokens, K)
    Floats weights;       // (tokens, K)
    Floats shared_output; // (tokens, n), read if HAS_SHARED
    Floats gates;         // (tokens, gate_stride), of which the first is read if IS_GATED
    Floats bias;          // (rows), read if HAS_BIAS
    uint n;
    uint blocks;          // k / 32
    uint expert_rows;     // from an expert's first row to that of the next
    uint gate_stride;
} p;

shared float partials[MAX_SUBGROUPS * ROWS];

void main() {
    const uint first_row = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * ROWS;
    if (first_row >= p.n) {
        return;
    }
    float sums[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        sums[r] = 0.0;
    }
    const uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    for (uint i = lane; i < K * p.blocks; i += WORKGROUP) {
        const uint pair = gl_WorkGroupID.z * K + i / p.blocks;
        const uint block = i % p.blocks;
        const uint base = p.chosen.v[pair] * p.expert_rows;
        const float factor = p.weights.v[pair];
        const InputBlock x = fetch_input(p.x, p.x_scale, pair, p.blocks, block);
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            const uint at = (base + min(first_row + r, p.n - 1)) * p.blocks + block;
            uvec4 first, second;
            vec2 scales;
            Offset offset;
            unpack_codes(fetch_codes(p.quants, p.high, at), first, second);
            unpack_scale(fetch_scale(p.scales, at), at, scales, offset);
            sums[r] += factor * block_dot(first, second, scales, offset, x);
        }
    }
    if (HAS_BIAS) {
        for (uint i = lane; i < K; i += WORKGROUP) {
            const uint pair = gl_WorkGroupID.z * K + i;
            const uint base = p.chosen.v[pair] * p.expert_rows;
            const float factor = p.weights.v[pair];
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                sums[r] += factor * p.bias.v[base + min(first_row + r, p.n - 1)];
            }
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        sums[r] = subgroupAdd(sums[r]);
        if (MAX_SUBGROUPS > 1 && subgroupElect()) {
            partials[gl_SubgroupID * ROWS + r] = sums[r];
        }
    }
    if (MAX_SUBGROUPS > 1) {
        barrier();
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        if (lane == r && first_row + r < p.n) {
            float sum = sums[r];
            if (MAX_SUBGROUPS > 1) {
                sum = 0.0;
                for (uint s = 0; s < gl_NumSubgroups; s++) {
                    sum += partials[s * ROWS + r];
                }
            }
            const uint at = gl_WorkGroupID.z * p.n + first_row + r;
            if (HAS_SHARED) {
                const float own = p.shared_output.v[at];
                sum += IS_GATED ? own / (1 + exp(min(-p.gates.v[gl_WorkGroupID.z * p.gate_stride], 80.0))) : own;
            }
            p.y.v[at] = sum;
        }
    }
}

// y (T, N) = x (T, K) · weight (N, K)^T + bias (N) for quantised weights and few tokens, by integer dot products: the
// weights are read once for TOKENS tokens. A workgroup owns PASSES times the outputs of ROWS weight rows (counted along x,
// then y) for TOKENS tokens (z). Its subgroups take ROWS rows at a time, each for itself, so that they need not wait for
// each other; their lanes share the blocks of K and have UNROLL of them under way. GATED: the weight's first half of rows
// makes gates, the second what they are for, and y (T, N / 2) = act(gate) * up; half of the rows of a pass are gates, and
// the others belong to them. BLOCKED: y becomes blocks of 32 bytes, of which a workgroup owns whole ones. PREFETCH: while
// a subgroup multiplies by some rows, those that follow come from memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require

#include BLOCKS
#include "include/activation.glsl"
#include "include/block_dot.glsl"
#include "include/block_store.glsl"
#include "include/prefetch.glsl"
#include "include/soft_cap.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(constant_id = 1) const uint ROWS = 2;
layout(constant_id = 2) const uint TOKENS = 1;
layout(constant_id = 3) const uint PASSES = 1;
layout(constant_id = 4) const uint UNROLL = 1;
layout(constant_id = 5) const bool HAS_BIAS = false;
layout(constant_id = 6) const bool HAS_SOFT_CAP = false;
layout(constant_id = 7) const bool GATED = false;
layout(constant_id = 8) const uint ACT = 0;  // of include/activation.glsl
layout(constant_id = 9) const bool BLOCKED = false;
layout(constant_id = 10) const uint PREFETCH = 0;  // bytes of a block in Quants; 0: nothing is
layout(local_size_x = 32, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Bias { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };

layout(push_constant, scalar) uniform P {
    InputCodes x;           // (tokens, 2, blocks, 16) bytes
    InputScales x_scale;    // (tokens, blocks)
    Quants quants;          // (n, blocks)
    High high;              // (n, blocks)
    Scales scales;          // (n, blocks)
    Bias bias;              // (n), read if HAS_BIAS
    Output y;               // (tokens, stride), unless BLOCKED
    BlockCodes y_codes;     // (tokens, 2, stride / 32, 16) bytes, if BLOCKED
    BlockScales y_scale;    // (tokens, stride / 32), if BLOCKED
    uint tokens;
    uint n;
    uint blocks;            // k / 32
    uint stride;
    float soft_cap;         // used if HAS_SOFT_CAP
} p;

const uint OUTPUTS = GATED ? ROWS / 2 : ROWS;  // of a token and a pass
const uint SUMS = ROWS * TOKENS;
const uint UP = OUTPUTS * TOKENS;  // where the sums begin that gates are for
const uint OWNED = OUTPUTS * PASSES;  // outputs of a token, of the workgroup

shared vec4 results[BLOCKED ? TOKENS * OWNED / 4 : 1];  // (TOKENS, OWNED / 4)

uint num_outputs = GATED ? p.n / 2 : p.n;
float sums[SUMS];

void store(uint token, uint first_output, uint output_index, float value, float up) {
    const uint row = first_output + output_index;
    if (HAS_BIAS && row < num_outputs) {
        value += p.bias.v[row];
    }
    if (HAS_SOFT_CAP) {
        value = soft_cap(value, p.soft_cap);
    }
    if (GATED) {
        value = glu(ACT, vec4(value), vec4(up)).x;
    }
    if (BLOCKED) {
        const uint at = token * OWNED + row % OWNED;
        results[at / 4][at % 4] = value;
    } else {
        const uint t = gl_WorkGroupID.z * TOKENS + token;
        if (t < p.tokens && row < num_outputs) {
            p.y.v[t * p.stride + row] = value;
        }
    }
}

// Begins to bring in the codes of OUTPUTS rows; returns what `prefetch` does.
uint prefetch_rows(uint first_row, uint end_row) {
    const uint num_rows = min(first_row + OUTPUTS, end_row) - min(first_row, end_row);
    const uint row_bytes = p.blocks * PREFETCH;
    return prefetch(uint64_t(p.quants) + uint64_t(first_row) * row_bytes, num_rows * row_bytes);
}

void add_rows(uint first_output) {
    uint rows[ROWS];  // where they begin, in blocks
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = first_output + r % OUTPUTS + (r < OUTPUTS ? 0 : p.n / 2);
        rows[r] = min(row, p.n - 1) * p.blocks;
    }
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    for (uint base = gl_SubgroupInvocationID; base < p.blocks; base += UNROLL * gl_SubgroupSize) {
        Codes codes[ROWS * UNROLL];
        Scale raw_scales[ROWS * UNROLL];
        [[unroll]] for (uint u = 0; u < UNROLL; u++) {
            const uint block = min(base + u * gl_SubgroupSize, p.blocks - 1);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                codes[u * ROWS + r] = fetch_codes(p.quants, p.high, rows[r] + block);
                raw_scales[u * ROWS + r] = fetch_scale(p.scales, rows[r] + block);
            }
        }
        [[unroll]] for (uint u = 0; u < UNROLL; u++) {
            const uint block = base + u * gl_SubgroupSize;
            if (u > 0 && block >= p.blocks) {
                break;
            }
            uvec4 firsts[ROWS];
            uvec4 seconds[ROWS];
            vec2 scales[ROWS];
            Offset offsets[ROWS];
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                unpack_codes(codes[u * ROWS + r], firsts[r], seconds[r]);
                unpack_scale(raw_scales[u * ROWS + r], rows[r] + block, scales[r], offsets[r]);
            }
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                const uint token = min(gl_WorkGroupID.z * TOKENS + t, p.tokens - 1);
                const InputBlock x = fetch_input(p.x, p.x_scale, token, p.blocks, block);
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    sums[r * TOKENS + t] += block_dot(firsts[r], seconds[r], scales[r], offsets[r], x);
                }
            }
        }
    }
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = subgroupAdd(sums[i]);
    }
}

void main() {
    const uint first = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * OWNED;
    if (first >= num_outputs) {
        return;
    }
    uint touched = 0;
    for (uint pass = gl_SubgroupID; pass < PASSES; pass += gl_NumSubgroups) {
        const uint first_output = first + pass * OUTPUTS;
        if (first_output >= num_outputs) {
            break;
        }
        if (PREFETCH > 0) {
            const uint next = first_output + OUTPUTS;
            touched += prefetch_rows(next, num_outputs);
            if (GATED) {
                touched += prefetch_rows(num_outputs + next, p.n);
            }
        }
        add_rows(first_output);
        [[unroll]] for (uint i = 0; i < UP; i++) {
            if (gl_SubgroupInvocationID == i % gl_SubgroupSize) {
                store(i % TOKENS, first_output, i / TOKENS, sums[i], GATED ? sums[i + UP] : 0.0);
            }
        }
    }
    if (PREFETCH > 0 && p.n == 0) {  // it never is, but the compiler can't know and leaves the loads alone
        p.y.v[0] = float(touched);
    }
    if (BLOCKED) {
        barrier();
        const uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
        for (uint i = lane; i < TOKENS * OWNED / 4; i += WORKGROUP) {
            const uint token = gl_WorkGroupID.z * TOKENS + i / (OWNED / 4);
            const uint quad = first / 4 + i % (OWNED / 4);
            // All lanes of a block are of one token and inside or outside together: rows of blocks are whole.
            if (token < p.tokens && quad < num_outputs / 4) {
                store_quad(p.y_codes, p.y_scale, token, p.stride / 32, quad, results[i]);
            }
        }
    }
}

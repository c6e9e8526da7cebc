// y (T, N) = x (T, K) · weight (N, K)^T + bias (N) for quantised weights and so few tokens that a lane holds its part of x
// while rows of weights go by: nothing but weights is read again and again. SPLIT subgroups share a row, lane l of the s-th
// has the blocks l, then l + SPLIT * subgroup size and so on behind the first s * subgroup size, HELD of them. A workgroup
// owns PASSES times the outputs of ROWS weight rows for each group of SPLIT subgroups (counted along x, then y) for TOKENS
// tokens (z). All rows of a pass are under way at once, with AHEAD during the pass before it. GATED and BLOCKED are as in
// linear_quant_vec.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_EXT_control_flow_attributes : require

#include BLOCKS
#include "include/activation.glsl"
#include "include/block_dot.glsl"
#include "include/block_store.glsl"
#include "include/soft_cap.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(constant_id = 1) const uint ROWS = 2;
layout(constant_id = 2) const uint TOKENS = 1;
layout(constant_id = 3) const uint PASSES = 1;
layout(constant_id = 4) const uint HELD = 1;
layout(constant_id = 5) const bool HAS_BIAS = false;
layout(constant_id = 6) const bool HAS_SOFT_CAP = false;
layout(constant_id = 7) const bool GATED = false;
layout(constant_id = 8) const uint ACT = 0;  // of include/activation.glsl
layout(constant_id = 9) const bool BLOCKED = false;
layout(constant_id = 10) const uint SPLIT = 1;
layout(constant_id = 11) const uint SUBGROUP = 32;  // lanes of a subgroup
layout(constant_id = 12) const bool AHEAD = false;
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

const uint GROUPS = WORKGROUP / SUBGROUP / SPLIT;  // of subgroups, each with rows of its own
const uint OUTPUTS = GATED ? ROWS / 2 : ROWS;      // of a token, a group and a pass
const uint OWNED = OUTPUTS * GROUPS * PASSES;      // outputs of a token, of the workgroup
const uint UP = OWNED * TOKENS * SPLIT;            // where the sums begin that gates are for
const uint STRIDE = SPLIT * SUBGROUP;

shared float sums[OWNED * TOKENS * SPLIT * (GATED ? 2 : 1)];  // (GATED ? 2 : 1, OWNED, TOKENS, SPLIT)

uint num_outputs = GATED ? p.n / 2 : p.n;
InputBlock held[TOKENS * HELD];

// The block of K that a lane has as one of those it holds, which may lie behind the last.
uint block_of(uint i) {
    return (gl_SubgroupID % SPLIT) * SUBGROUP + gl_SubgroupInvocationID + i * STRIDE;
}

void hold_input() {
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        const uint token = min(gl_WorkGroupID.z * TOKENS + t, p.tokens - 1);
        [[unroll]] for (uint i = 0; i < HELD; i++) {
            const uint block = block_of(i);
            held[t * HELD + i] = fetch_input(p.x, p.x_scale, token, p.blocks, min(block, p.blocks - 1));
            if (block >= p.blocks) {
                held[t * HELD + i].scale = 0.0;  // the last block's weights stand in there
            }
        }
    }
}

// What a pass computes on, and what was fetched for the next one.
Codes codes[ROWS * HELD], next_codes[ROWS * HELD];
Scale scales[ROWS * HELD], next_scales[ROWS * HELD];

// Where a weight row of a pass begins, in blocks; past the end the last row stands in.
uint row_begin(uint first_output, uint r) {
    const uint row = first_output + r % OUTPUTS + (r < OUTPUTS ? 0 : p.n / 2);
    return min(row, p.n - 1) * p.blocks;
}

void fetch_rows(uint first_output) {
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        const uint block = min(block_of(i), p.blocks - 1);
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            next_codes[i * ROWS + r] = fetch_codes(p.quants, p.high, row_begin(first_output, r) + block);
            next_scales[i * ROWS + r] = fetch_scale(p.scales, row_begin(first_output, r) + block);
        }
    }
}

void take_rows() {
    [[unroll]] for (uint i = 0; i < ROWS * HELD; i++) {
        codes[i] = next_codes[i];
        scales[i] = next_scales[i];
    }
}

void add_rows(uint first_output, uint local) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float row_sums[TOKENS];
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            row_sums[t] = 0.0;
        }
        [[unroll]] for (uint i = 0; i < HELD; i++) {
            uvec4 first, second;
            vec2 scale;
            Offset offset;
            const uint block = row_begin(first_output, r) + min(block_of(i), p.blocks - 1);
            unpack_codes(codes[i * ROWS + r], first, second);
            unpack_scale(scales[i * ROWS + r], block, scale, offset);
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                row_sums[t] += block_dot(first, second, scale, offset, held[t * HELD + i]);
            }
        }
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            const float sum = subgroupAdd(row_sums[t]);
            const uint at = ((local + r % OUTPUTS) * TOKENS + t) * SPLIT + gl_SubgroupID % SPLIT + (r < OUTPUTS ? 0 : UP);
            if (subgroupElect()) {
                sums[at] = sum;
            }
        }
    }
}

float total(uint at) {
    float sum = sums[at];
    [[unroll]] for (uint s = 1; s < SPLIT; s++) {
        sum += sums[at + s];
    }
    return sum;
}

// An output of the workgroup.
float result(uint first, uint output_index, uint token) {
    const uint at = (output_index * TOKENS + token) * SPLIT;
    const uint row = first + output_index;
    float value = total(at);
    if (HAS_BIAS && row < num_outputs) {
        value += p.bias.v[row];
    }
    if (HAS_SOFT_CAP) {
        value = soft_cap(value, p.soft_cap);
    }
    return GATED ? glu(ACT, vec4(value), vec4(total(UP + at))).x : value;
}

void main() {
    const uint first = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * OWNED;
    if (first >= num_outputs) {
        return;
    }
    const uint own = gl_SubgroupID / SPLIT * OUTPUTS;
    if (AHEAD) {
        fetch_rows(first + own);
        hold_input();
        [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
            const uint local = pass * GROUPS * OUTPUTS + own;
            take_rows();
            if (pass + 1 < PASSES) {
                fetch_rows(first + local + GROUPS * OUTPUTS);
            }
            add_rows(first + local, local);
        }
    } else {
        hold_input();
        for (uint pass = 0; pass < PASSES; pass++) {
            const uint local = pass * GROUPS * OUTPUTS + own;
            if (first + local < num_outputs) {
                fetch_rows(first + local);
                take_rows();
                add_rows(first + local, local);
            }
        }
    }
    barrier();
    const uint lane = gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
    if (BLOCKED) {
        for (uint i = lane; i < TOKENS * OWNED / 4; i += WORKGROUP) {
            const uint t = i / (OWNED / 4);
            const uint output_index = i % (OWNED / 4) * 4;
            const uint token = gl_WorkGroupID.z * TOKENS + t;
            // All lanes of a block are of one token and inside or outside together: rows of blocks are whole.
            if (token < p.tokens && first + output_index < num_outputs) {
                vec4 values;
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    values[j] = result(first, output_index + j, t);
                }
                store_quad(p.y_codes, p.y_scale, token, p.stride / 32, (first + output_index) / 4, values);
            }
        }
    } else {
        for (uint i = lane; i < TOKENS * OWNED; i += WORKGROUP) {
            const uint t = i / OWNED;
            const uint token = gl_WorkGroupID.z * TOKENS + t;
            const uint row = first + i % OWNED;
            if (token < p.tokens && row < num_outputs) {
                p.y.v[token * p.stride + row] = result(first, i % OWNED, t);
            }
        }
    }
}

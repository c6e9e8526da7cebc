// y (pairs, N) = x · weight^T with quantised weights of the expert that each pair of a token and an expert names, by integer dot
// products. A workgroup owns a tile of up to PAIRS pairs of one expert (z), and PASSES times ROWS weight rows of that (counted along
// x, then y), of which a subgroup takes ROWS at a time and its lanes share the blocks of K: weights are read once for the tile.
// GATED: half of the rows are gates, whose activations are multiplied by what the others make, and y has half of the columns.
// BLOCKED: y is left in blocks of 32 int8, of which a workgroup owns whole ones.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require

#include BLOCKS
#include "include/activation.glsl"
#include "include/block_dot.glsl"
#include "include/block_store.glsl"
#include "include/expert_rows.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(constant_id = 1) const uint ROWS = 2;
layout(constant_id = 2) const uint PAIRS = 1;
layout(constant_id = 3) const bool GATED = false;
layout(constant_id = 4) const uint ACT = 0;  // of include/activation.glsl
layout(constant_id = 5) const uint PASSES = 1;
layout(constant_id = 6) const bool BLOCKED = false;
layout(constant_id = 7) const bool HAS_BIAS = false;
layout(constant_id = 8) const uint STEP = 1;  // rows from one output to the next
layout(local_size_x = 32, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Biases { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };

layout(push_constant, scalar) uniform P {
    InputCodes x;         // (pairs / shared_by, 2, blocks, 16) bytes
    InputScales x_scale;  // (pairs / shared_by, blocks)
    Quants quants;        // (rows, blocks)
    High high;            // (rows, blocks)
    Scales scales;        // (rows, blocks)
    Output y;             // (pairs, stride), unless BLOCKED
    BlockCodes y_codes;   // (pairs, 2, stride / 32, 16) bytes, if BLOCKED
    BlockScales y_scale;  // (pairs, stride / 32), if BLOCKED
    Tiles tiles;
    Order order;          // (pairs)
    Biases bias;          // (rows), read if HAS_BIAS
    uint shared_by;       // pairs that read one row of x
    uint n;               // outputs of a pair
    uint blocks;          // k / 32
    uint stride;
    uint expert_rows;     // from an expert's first row to that of the next
    uint up_rows;         // from a gate to what it is for
} p;

const uint OUTPUTS = GATED ? ROWS / 2 : ROWS;
const uint SUMS = ROWS * PAIRS;
const uint UP = OUTPUTS * PAIRS;  // where the sums begin that gates are for
const uint OWNED = OUTPUTS * PASSES;  // outputs of a pair, of the workgroup

shared vec4 results[BLOCKED ? PAIRS * OWNED / 4 : 1];  // (PAIRS, OWNED / 4)

float sums[SUMS];

void add_rows(uint base, uint first_output, uint inputs[PAIRS]) {
    uint rows[ROWS];  // where they begin, in blocks
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = min(first_output + r % OUTPUTS, p.n - 1) * STEP + (r < OUTPUTS ? 0 : p.up_rows);
        rows[r] = (base + row) * p.blocks;
    }
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    for (uint block = gl_SubgroupInvocationID; block < p.blocks; block += gl_SubgroupSize) {
        uvec4 firsts[ROWS];
        uvec4 seconds[ROWS];
        vec2 scales[ROWS];
        Offset offsets[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            unpack_codes(fetch_codes(p.quants, p.high, rows[r] + block), firsts[r], seconds[r]);
            unpack_scale(fetch_scale(p.scales, rows[r] + block), rows[r] + block, scales[r], offsets[r]);
        }
        [[unroll]] for (uint t = 0; t < PAIRS; t++) {
            const InputBlock x = fetch_input(p.x, p.x_scale, inputs[t], p.blocks, block);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                sums[r * PAIRS + t] += block_dot(firsts[r], seconds[r], scales[r], offsets[r], x);
            }
        }
    }
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = subgroupAdd(sums[i]);
    }
}

// A sum with the bias of its row of the expert's; rows past the end are nobody's.
float with_bias(float sum, uint expert, uint output_index, uint up) {
    return HAS_BIAS ? sum + p.bias.v[expert * p.expert_rows + min(output_index, p.n - 1) * STEP + up] : sum;
}

void store(uint t, uint pair, uint output_index, float value) {
    if (BLOCKED) {
        const uint at = t * OWNED + output_index % OWNED;
        results[at / 4][at % 4] = value;
    } else if (output_index < p.n) {
        p.y.v[pair * p.stride + output_index] = value;
    }
}

void main() {
    const Tile tile = p.tiles.v[gl_WorkGroupID.z];
    const uint first = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * OWNED;
    if (tile.count == 0 || first >= p.n) {
        return;
    }
    uint pairs[PAIRS];
    uint inputs[PAIRS];
    [[unroll]] for (uint t = 0; t < PAIRS; t++) {
        pairs[t] = p.order.v[tile.first + min(t, tile.count - 1)];
        inputs[t] = pairs[t] / p.shared_by;
    }
    for (uint pass = gl_SubgroupID; pass < PASSES; pass += gl_NumSubgroups) {
        const uint first_output = first + pass * OUTPUTS;
        if (first_output >= p.n) {
            break;
        }
        add_rows(tile.expert * p.expert_rows, first_output, inputs);
        [[unroll]] for (uint i = 0; i < UP; i++) {
            if (gl_SubgroupInvocationID == i % gl_SubgroupSize && i % PAIRS < tile.count) {
                const uint row = first_output + i / PAIRS;
                float value = with_bias(sums[i], tile.expert, row, 0);
                if (GATED) {
                    const float up = with_bias(sums[i + (GATED ? UP : 0)], tile.expert, row, p.up_rows);
                    value = glu(ACT, vec4(value), vec4(up)).x;
                }
                store(i % PAIRS, pairs[i % PAIRS], row, value);
            }
        }
    }
    if (BLOCKED) {
        barrier();
        const uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
        for (uint i = lane; i < PAIRS * OWNED / 4; i += WORKGROUP) {
            const uint t = i / (OWNED / 4);
            const uint quad = first / 4 + i % (OWNED / 4);
            // All lanes of a block are of one pair and inside or outside together: rows of blocks are whole.
            if (t < tile.count && quad < p.n / 4) {
                store_quad(p.y_codes, p.y_scale, p.order.v[tile.first + t], p.stride / 32, quad, results[i]);
            }
        }
    }
}

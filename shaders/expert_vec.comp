// y (pairs, N) = x · weight^T with dense weights of the expert that each pair of a token and an expert names. A workgroup owns a
// tile of up to PAIRS pairs of one expert (z), and ROWS weight rows of that for each of its subgroups (counted along x, then y),
// whose lanes share K: weights are read once for the tile. GATED: half of the rows are gates, whose activations are
// multiplied by what the others make, and y has half of the columns.
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
#include "include/expert_rows.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(constant_id = 1) const uint ROWS = 2;
layout(constant_id = 2) const uint PAIRS = 1;
layout(constant_id = 3) const bool GATED = false;
layout(constant_id = 4) const uint ACT = 0;  // of include/activation.glsl
layout(constant_id = 5) const bool HAS_BIAS = false;
layout(constant_id = 6) const uint STEP = 1;  // rows from one output to the next
layout(local_size_x = 32, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Input { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Biases { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };

layout(push_constant, scalar) uniform P {
    Input x;           // (pairs / shared_by, k)
    Weights weight;    // (rows, k)
    Output y;          // (pairs, stride)
    Tiles tiles;
    Order order;       // (pairs)
    Biases bias;       // (rows), read if HAS_BIAS
    uint shared_by;    // pairs that read one row of x
    uint n;            // outputs of a pair
    uint k;            // a multiple of 8
    uint stride;
    uint expert_rows;  // from an expert's first row to that of the next
    uint up_rows;      // from a gate to what it is for
} p;

const uint OUTPUTS = GATED ? ROWS / 2 : ROWS;
const uint SUMS = ROWS * PAIRS;
const uint UP = OUTPUTS * PAIRS;  // where the sums begin that gates are for

float sums[SUMS];

void add_rows(uint base, uint first_output, uint inputs[PAIRS]) {
    const uint blocks = p.k / 8;
    uint rows[ROWS];  // where they begin, in blocks of 8
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = min(first_output + r % OUTPUTS, p.n - 1) * STEP + (r < OUTPUTS ? 0 : p.up_rows);
        rows[r] = (base + row) * blocks;
    }
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    for (uint block = gl_SubgroupInvocationID; block < blocks; block += gl_SubgroupSize) {
        vec4 lows[ROWS];
        vec4 highs[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            unpack8(fetch8(p.weight, rows[r] + block), lows[r], highs[r]);
        }
        [[unroll]] for (uint t = 0; t < PAIRS; t++) {
            const uint at = (inputs[t] * blocks + block) * 2;
            const vec4 low = p.x.v[at];
            const vec4 high = p.x.v[at + 1];
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                sums[r * PAIRS + t] += dot(lows[r], low) + dot(highs[r], high);
            }
        }
    }
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = subgroupAdd(sums[i]);
    }
}

// A sum with the bias of its row of the expert's.
float with_bias(float sum, uint expert, uint row) {
    return HAS_BIAS ? sum + p.bias.v[expert * p.expert_rows + row] : sum;
}

void main() {
    const Tile tile = p.tiles.v[gl_WorkGroupID.z];
    const uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint first_output = (group * gl_NumSubgroups + gl_SubgroupID) * OUTPUTS;
    if (tile.count == 0 || first_output >= p.n) {
        return;
    }
    uint pairs[PAIRS];
    uint inputs[PAIRS];
    [[unroll]] for (uint t = 0; t < PAIRS; t++) {
        pairs[t] = p.order.v[tile.first + min(t, tile.count - 1)];
        inputs[t] = pairs[t] / p.shared_by;
    }
    add_rows(tile.expert * p.expert_rows, first_output, inputs);
    [[unroll]] for (uint i = 0; i < UP; i++) {
        const uint row = first_output + i / PAIRS;
        if (gl_SubgroupInvocationID == i % gl_SubgroupSize && i % PAIRS < tile.count && row < p.n) {
            const float value = with_bias(sums[i], tile.expert, row * STEP);
            const float up = GATED ? with_bias(sums[i + (GATED ? UP : 0)], tile.expert, row * STEP + p.up_rows) : 0.0;
            p.y.v[pairs[i % PAIRS] * p.stride + row] = GATED ? glu(ACT, vec4(value), vec4(up)).x : value;
        }
    }
}

// Products of pairs of a token and an expert with that expert's weights, by tiles.glsl. A workgroup owns a tile of up to TILE_T
// pairs of one expert (along x; those without pairs come last), and TILE_N rows of its weights (along y). GATED: of 16 rows the
// first 8 are gates, whose activations are multiplied by what the others make, and y has half of the columns.
// Needs p.scale, p.y, p.tiles, p.order, p.shared_by, p.bias, p.n, p.stride, p.expert_rows and p.up_rows.

layout(constant_id = 6) const bool GATED = false;
layout(constant_id = 7) const uint ACT = 0;  // of include/activation.glsl
layout(constant_id = 9) const bool HAS_BIAS = false;
layout(constant_id = 10) const uint STEP = 1;  // rows from one output to the next

shared uint pairs[TILE_T];

Tile tile = p.tiles.v[gl_WorkGroupID.x];

uint input_row(uint t) {
    return pairs[min(t, TILE_T - 1)] / p.shared_by;
}

// The output that a row of the tile is for.
uint output_of(uint r) {
    const uint row = gl_WorkGroupID.y * TILE_N + r;
    return GATED ? row / 16 * 8 + row % 8 : row;
}

uint weight_row(uint r) {
    const uint row = min(output_of(r), p.n - 1) * STEP + (GATED && r % 16 >= 8 ? p.up_rows : 0);
    return tile.expert * p.expert_rows + row;
}

// Sums of four outputs from one on, `up` rows behind the first of which they are sums, with the biases of these.
vec4 with_bias(vec4 values, uint first, uint up) {
    if (HAS_BIAS) {
        [[unroll]] for (uint i = 0; i < 4; i++) {
            values[i] += p.bias.v[tile.expert * p.expert_rows + min(first + i, p.n - 1) * STEP + up];
        }
    }
    return values;
}

void leave(uint t, uint r, uint at) {
    if (t >= tile.count || (GATED && r % 16 >= 8)) {
        return;
    }
    const uint pair = pairs[t];
    const float scale = p.scale.v[pair / p.shared_by];
    const uint first = output_of(r);
    vec4 values = with_bias(uintBitsToFloat(weights[at]) * scale, first, 0);
    if (GATED) {
        values = glu(ACT, values, with_bias(uintBitsToFloat(weights[at + 2]) * scale, first, p.up_rows));
    }
    [[unroll]] for (uint i = 0; i < 4; i++) {
        if (first + i < p.n) {
            p.y.v[pair * p.stride + first + i] = values[i];
        }
    }
}

// Makes the workgroup's tile of products whose rows have so many blocks.
void make_pairs(uint blocks) {
    if (tile.count == 0) {
        return;
    }
    for (uint t = gl_LocalInvocationID.x; t < TILE_T; t += WORKGROUP) {
        pairs[t] = p.order.v[tile.first + min(t, tile.count - 1)];
    }
    barrier();
    make_tile(0, blocks, blocks);
}

// A linear by tiles.glsl. A workgroup owns TILE_T tokens (along x), TILE_N weight rows (along y) and one of SPLITS parts of K
// (along z). Of the workgroups that share a tile, the last to finish adds up what all have left. Needs p.scale,
// p.bias, p.y, p.stride, p.partials, p.counters, p.tokens, p.n and p.soft_cap.

layout(constant_id = 6) const bool HAS_BIAS = false;
layout(constant_id = 7) const bool HAS_SOFT_CAP = false;
layout(constant_id = 9) const uint SPLITS = 1;

shared bool is_last;

uint tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;

uint input_row(uint t) {
    return min(gl_WorkGroupID.x * TILE_T + t, p.tokens - 1);
}

uint weight_row(uint r) {
    return min(gl_WorkGroupID.y * TILE_N + r, p.n - 1);
}

// Writes four sums of one token, from a row on.
void finish(uint token, uint first_row, vec4 values) {
    values *= p.scale.v[token];
    [[unroll]] for (uint i = 0; i < 4; i++) {
        const uint row = first_row + i;
        if (row < p.n) {
            const float value = HAS_BIAS ? values[i] + p.bias.v[row] : values[i];
            p.y.v[token * p.stride + row] = HAS_SOFT_CAP ? soft_cap(value, p.soft_cap) : value;
        }
    }
}

void leave(uint t, uint r, uint at) {
    const uint token = gl_WorkGroupID.x * TILE_T + t;
    const vec4 values = uintBitsToFloat(weights[at]);
    if (SPLITS > 1) {
        p.partials.v[(((tile * SPLITS + gl_WorkGroupID.z) * TILE_T + t) * TILE_N + r) / 4] = values;
    } else if (token < p.tokens) {
        finish(token, gl_WorkGroupID.y * TILE_N + r, values);
    }
}

// The order of the sum does not depend on who is last.
void join_splits() {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0) {
        is_last = atomicAdd(p.counters.v[tile], 1) == SPLITS - 1;
        if (is_last) {
            p.counters.v[tile] = 0;
        }
    }
    barrier();
    if (!is_last) {
        return;
    }
    memoryBarrierBuffer();
    for (uint i = gl_LocalInvocationID.x; i < TILE_T * TILE_N / 4; i += WORKGROUP) {
        const uint token = gl_WorkGroupID.x * TILE_T + i / (TILE_N / 4);
        if (token < p.tokens) {
            vec4 sum = vec4(0);
            [[unroll]] for (uint split = 0; split < SPLITS; split++) {
                sum += p.partials.v[(tile * SPLITS + split) * (TILE_T * TILE_N / 4) + i];
            }
            finish(token, gl_WorkGroupID.y * TILE_N + i % (TILE_N / 4) * 4, sum);
        }
    }
}

// Makes the workgroup's part of a product whose rows have so many blocks.
void make_part(uint blocks) {
    const uint split_blocks = (blocks + SPLITS * BLOCKS_K - 1) / (SPLITS * BLOCKS_K) * BLOCKS_K;
    const uint begin = gl_WorkGroupID.z * split_blocks;
    make_tile(begin, min(begin + split_blocks, blocks), blocks);
    if (SPLITS > 1) {
        join_splits();
    }
}

// y (T, N) = scale (T) * (xh (T, K) · weight (N, K)^T) + bias (N) for quantised weights and many tokens, on 16×16×16 matrix
// units: half × half, summed in single. Weights become halves on their way into shared memory.
// A workgroup owns TILE_T tokens (along x), TILE_N weight rows (along y) and one of SPLITS parts of K (along z); its
// SUBGROUPS_T × SUBGROUPS_N subgroups own equal parts of the tile. The next tile of K is on its way into registers while
// the present one is multiplied. Of the workgroups that share a tile, the last to finish adds up what all have left.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#include BLOCKS
#include "include/soft_cap.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128;  // subgroup size * SUBGROUPS_T * SUBGROUPS_N
layout(constant_id = 1) const uint TILE_T = 64;
layout(constant_id = 2) const uint TILE_N = 64;
layout(constant_id = 3) const uint TILE_K = 32;      // a multiple of 32
layout(constant_id = 4) const uint SUBGROUPS_T = 2;
layout(constant_id = 5) const uint SUBGROUPS_N = 2;
layout(constant_id = 6) const bool HAS_BIAS = false;
layout(constant_id = 7) const bool HAS_SOFT_CAP = false;
layout(constant_id = 8) const uint BUFFERS = 2;  // staged tiles: with 1, staging and multiplying take turns
layout(constant_id = 9) const uint SPLITS = 1;
layout(local_size_x = 128, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Halves { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Floats { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer Partials { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counters { uint v[]; };

layout(push_constant, scalar) uniform P {
    Halves xh;          // (tokens, blocks, 32)
    Floats scale;       // (tokens)
    Quants quants;      // (n, blocks)
    High high;          // (n, blocks)
    Scales scales;      // (n, blocks)
    Floats bias;        // (n), read if HAS_BIAS
    Output y;           // (tokens, stride)
    Partials partials;  // (tiles, SPLITS, TILE_T, TILE_N), used if SPLITS > 1
    Counters counters;  // (tiles), zeros, and zeros again afterwards
    uint tokens;
    uint n;
    uint blocks;        // k / 32
    uint stride;
    float soft_cap;     // used if HAS_SOFT_CAP
} p;

const uint EIGHTS_K = TILE_K / 8;   // of a tile's row
const uint BLOCKS_K = TILE_K / 32;  // of a tile's row
// Of a tile's row, in units of 8 halves. The unit of padding spreads the banks; the alignment of whole units is what lets
// a driver load matrices by the instructions made for it.
const uint STRIDE = EIGHTS_K + 1;
const uint INPUT_SIZE = TILE_T * STRIDE;
const uint WEIGHT_SIZE = TILE_N * STRIDE;
const uint FRAGMENTS_T = TILE_T / SUBGROUPS_T / 16;
const uint FRAGMENTS_N = TILE_N / SUBGROUPS_N / 16;
const uint INPUT_LOADS = (TILE_T * EIGHTS_K + WORKGROUP - 1) / WORKGROUP;
const uint LANES = WORKGROUP / (SUBGROUPS_T * SUBGROUPS_N);
const uint WEIGHT_LOADS = (TILE_N * BLOCKS_K + WORKGROUP - 1) / WORKGROUP;

// Words of 16 bytes throughout: floats may begin at any word, and a driver that stores matrices by wide instructions puts
// them at a multiple of its width then, beside their place.
shared uvec4 inputs[BUFFERS * INPUT_SIZE];    // (BUFFERS, TILE_T, STRIDE)
shared uvec4 weights[BUFFERS * WEIGHT_SIZE];  // (BUFFERS, TILE_N, STRIDE), at the end 64 a subgroup for its sums
shared bool is_last;

uint own_eight = gl_LocalInvocationID.x % EIGHTS_K;
uint own_block = gl_LocalInvocationID.x % BLOCKS_K;
uint tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;

uint input_rows[INPUT_LOADS];  // where the lane's rows begin, in units of 8
uint weight_rows[WEIGHT_LOADS];  // in blocks
uvec4 input_loads[INPUT_LOADS];
Codes code_loads[WEIGHT_LOADS];
Scale scale_loads[WEIGHT_LOADS];

void find_rows(uint first_token, uint first_row) {
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        const uint t = (gl_LocalInvocationID.x + i * WORKGROUP) / EIGHTS_K;
        input_rows[i] = min(first_token + t, p.tokens - 1) * p.blocks * 4;
    }
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        const uint r = (gl_LocalInvocationID.x + i * WORKGROUP) / BLOCKS_K;
        weight_rows[i] = min(first_row + r, p.n - 1) * p.blocks;
    }
}

void fetch(uint first_block) {
    const uint block = min(first_block + own_block, p.blocks - 1);
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        code_loads[i] = fetch_codes(p.quants, p.high, weight_rows[i] + block);
        scale_loads[i] = fetch_scale(p.scales, weight_rows[i] + block);
    }
    const uint eight = min(first_block * 4 + own_eight, p.blocks * 4 - 1);
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        input_loads[i] = p.xh.v[input_rows[i] + eight];
    }
}

// Makes weights of one group's codes, and of eight at a time 16 bytes.
void stage_group(uint to, Codes codes, uint group, float scale, float offset) {
    const f16vec2 scales = f16vec2(float16_t(scale));
    const f16vec2 offsets = f16vec2(float16_t(offset));
    [[unroll]] for (uint i = 0; i < 2; i++) {
        uvec4 words;
        [[unroll]] for (uint j = 0; j < 2; j++) {
            f16vec2 low, high;
            quad_halves(codes, group * 4 + i * 2 + j, low, high);
            low *= scales;
            high *= scales;
            if (HAS_OFFSET) {
                low += offsets;
                high += offsets;
            }
            words[2 * j] = packFloat2x16(low);
            words[2 * j + 1] = packFloat2x16(high);
        }
        weights[to + i] = words;
    }
}

// Past the end of K both factors are zero: a stray infinity in the other must not become a NaN.
void stage(uint buffer_index, uint first_block, uint end) {
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        const uint t = (gl_LocalInvocationID.x + i * WORKGROUP) / EIGHTS_K;
        if (t < TILE_T) {
            const bool inside = first_block * 4 + own_eight < end * 4;
            inputs[buffer_index * INPUT_SIZE + t * STRIDE + own_eight] = inside ? input_loads[i] : uvec4(0);
        }
    }
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        const uint r = (gl_LocalInvocationID.x + i * WORKGROUP) / BLOCKS_K;
        if (r < TILE_N) {
            const uint block = first_block + own_block;
            vec2 scale;
            float offset;
            unpack_scale(scale_loads[i], weight_rows[i] + block, scale, offset);
            const float mask = block < end ? 1.0 : 0.0;
            const uint to = buffer_index * WEIGHT_SIZE + r * STRIDE + own_block * 4;
            stage_group(to, code_loads[i], 0, scale.x * mask, offset * mask);
            stage_group(to + 2, code_loads[i], 1, scale.y * mask, offset * mask);
        }
    }
}

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[FRAGMENTS_T * FRAGMENTS_N];

void multiply(uint buffer_index, uint subgroup_t, uint subgroup_n) {
    [[unroll]] for (uint k = 0; k < TILE_K / 16; k++) {
        coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[FRAGMENTS_T];
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
            const uint t = (subgroup_t * FRAGMENTS_T + i) * 16;
            coopMatLoad(a[i], inputs, buffer_index * INPUT_SIZE + t * STRIDE + k * 2, STRIDE,
                        gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
            coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
            const uint r = (subgroup_n * FRAGMENTS_N + j) * 16;
            coopMatLoad(b, weights, buffer_index * WEIGHT_SIZE + r * STRIDE + k * 2, STRIDE,
                        gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
                sums[i * FRAGMENTS_N + j] = coopMatMulAdd(a[i], b, sums[i * FRAGMENTS_N + j]);
            }
        }
    }
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

// Writes 16×16 sums that begin at this token and this row of the tile.
void store(uint index, uint first_t, uint first_r) {
    const uint room = gl_SubgroupID * 64;
    coopMatStore(sums[index], weights, room, 4, gl_CooperativeMatrixLayoutRowMajor);
    subgroupBarrier();
    [[unroll]] for (uint first = 0; first < 64; first += LANES) {
        const uint i = first + gl_SubgroupInvocationID;
        const uint t = first_t + i / 4;
        const uint r = first_r + i % 4 * 4;
        const uint token = gl_WorkGroupID.x * TILE_T + t;
        const vec4 values = uintBitsToFloat(weights[room + i]);
        if (SPLITS > 1) {
            p.partials.v[(((tile * SPLITS + gl_WorkGroupID.z) * TILE_T + t) * TILE_N + r) / 4] = values;
        } else if (token < p.tokens) {
            finish(token, gl_WorkGroupID.y * TILE_N + r, values);
        }
    }
    subgroupBarrier();
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

void main() {
    const uint subgroup_t = gl_SubgroupID / SUBGROUPS_N;
    const uint subgroup_n = gl_SubgroupID % SUBGROUPS_N;
    const uint split_blocks = (p.blocks + SPLITS * BLOCKS_K - 1) / (SPLITS * BLOCKS_K) * BLOCKS_K;
    const uint begin = gl_WorkGroupID.z * split_blocks;
    const uint end = min(begin + split_blocks, p.blocks);
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T * FRAGMENTS_N; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    }
    find_rows(gl_WorkGroupID.x * TILE_T, gl_WorkGroupID.y * TILE_N);
    fetch(begin);
    uint buffer_index = 0;
    for (uint block = begin; block < end; block += BLOCKS_K) {
        stage(buffer_index, block, end);
        barrier();
        const uint next = block + BLOCKS_K;
        if (next < end) {
            fetch(next);
        }
        multiply(buffer_index, subgroup_t, subgroup_n);
        if (BUFFERS > 1) {
            buffer_index = 1 - buffer_index;
        } else {
            barrier();
        }
    }
    barrier();
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
            store(i * FRAGMENTS_N + j, (subgroup_t * FRAGMENTS_T + i) * 16, (subgroup_n * FRAGMENTS_N + j) * 16);
        }
    }
    if (SPLITS > 1) {
        join_splits();
    }
}

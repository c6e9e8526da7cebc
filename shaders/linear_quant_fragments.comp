// y (T, N) = scale (T) * (xh (T, K) · weight (N, K)^T) + bias (N) for quantised weights and many tokens, on 16×16×16 matrix
// units whose lanes hold known elements: lane 4 g + q has of the first factor those of columns 2 q, 2 q + 1, 2 q + 8 and
// 2 q + 9 of rows g and g + 8. So weights become matrices in the registers that they were loaded into. Columns may come in
// any order that both factors share: of 128 at a time, lane q has those of block q, of which every matrix takes four.
// A workgroup owns FRAGMENT_TOKENS FRAGMENTS_T tokens (along x), 16 FRAGMENTS_N SUBGROUPS_N weight rows (along y) and one of
// SPLITS parts of K (along z), which SUBGROUPS_K subgroups share for each of SUBGROUPS_N parts of the rows. Of the workgroups
// that share a tile, the last to finish adds up what all have left. Up to 8 tokens take matrices of 8: the first rows of a tile.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#include BLOCKS
#include "include/soft_cap.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128;  // 32 * SUBGROUPS_N * SUBGROUPS_K
layout(constant_id = 1) const uint FRAGMENTS_T = 1;
layout(constant_id = 2) const uint FRAGMENTS_N = 2;
layout(constant_id = 3) const uint SUBGROUPS_N = 4;
layout(constant_id = 4) const uint SUBGROUPS_K = 1;
layout(constant_id = 5) const uint SPLITS = 1;
layout(constant_id = 6) const bool HAS_BIAS = false;
layout(constant_id = 7) const bool HAS_SOFT_CAP = false;
layout(constant_id = 8) const uint FRAGMENT_TOKENS = 16;  // of a matrix; with 8 of them FRAGMENTS_T is 1
layout(local_size_x = 128, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Fragments { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Floats { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer Partials { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counters { uint v[]; };

layout(push_constant, scalar) uniform P {
    Fragments xh;       // (tokens / 16, blocks / 4, 8, 32, 8) halves, see form/fragments.glsl
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
    uint blocks;        // k / 32, a multiple of 4
    uint stride;
    float soft_cap;     // used if HAS_SOFT_CAP
} p;

#define Weights coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define Inputs coopmat<float16_t, gl_ScopeSubgroup, 16, FRAGMENT_TOKENS, gl_MatrixUseB>
#define Sums coopmat<float, gl_ScopeSubgroup, 16, FRAGMENT_TOKENS, gl_MatrixUseAccumulator>

const uint TILE_T = FRAGMENT_TOKENS * FRAGMENTS_T;
const uint TILE_N = 16 * FRAGMENTS_N * SUBGROUPS_N;
const uint LANE_ROWS = 2 * FRAGMENTS_N;
const uint AHEAD = FRAGMENT_TOKENS == 8 ? 8 : FRAGMENTS_T == 1 ? 4 : 2;

const uint MATRIX_WORDS = 4 * FRAGMENT_TOKENS;  // of a matrix of sums

// Words of 16 bytes: a driver that stores matrices by wide instructions puts them at a multiple of its width.
shared uvec4 results[SUBGROUPS_K * SUBGROUPS_N * MATRIX_WORDS];  // (subgroups, tokens, 4), the bits of four floats each
shared bool is_last;

uint tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
uint block_lane = gl_SubgroupInvocationID % 4;
uint rows[LANE_ROWS];  // where they begin, in blocks
Codes codes[LANE_ROWS];
Scale raw_scales[LANE_ROWS];
Codes blocks[LANE_ROWS];        // that are multiplied, while the next come into `codes`
f16vec2 scales[LANE_ROWS * 2];  // of their groups
f16vec2 offsets[LANE_ROWS * 2];
u64vec2 inputs[FRAGMENTS_T * AHEAD];  // of the next AHEAD matrices, in turn
Sums sums[FRAGMENTS_N * FRAGMENTS_T];

void fetch(uint chunk) {
    [[unroll]] for (uint i = 0; i < LANE_ROWS; i++) {
        codes[i] = fetch_codes(p.quants, p.high, rows[i] + chunk * 4 + block_lane);
        raw_scales[i] = fetch_scale(p.scales, rows[i] + chunk * 4 + block_lane);
    }
}

void fetch_inputs(uint chunk, uint matrix) {
    [[unroll]] for (uint t = 0; t < FRAGMENTS_T; t++) {
        const uint token_tile = min(gl_WorkGroupID.x * FRAGMENTS_T + t, (p.tokens - 1) / 16);
        const uint at = ((token_tile * (p.blocks / 4) + chunk) * 8 + matrix) * 32 + gl_SubgroupInvocationID;
        const uint place = matrix % AHEAD * FRAGMENTS_T + t;
        if (FRAGMENT_TOKENS == 8) {
            inputs[place].x = p.xh.v[at].x;
        } else {
            inputs[place] = p.xh.v[at];
        }
    }
}

Inputs input_matrix(u64vec2 words) {
    const uvec4 pairs = uvec4(unpack32(words.x), unpack32(words.y));
    Inputs b;
    [[unroll]] for (uint i = 0; i < FRAGMENT_TOKENS / 4; i++) {
        const f16vec2 pair = unpackFloat2x16(pairs[i]);
        b[2 * i] = pair.x;
        b[2 * i + 1] = pair.y;
    }
    return b;
}

// Of each block the four weights that belong to one matrix.
Weights weight_matrix(uint f, uint matrix) {
    Weights a;
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const uint row = 2 * f + i;
        f16vec2 low, high;
        quad_halves(blocks[row], matrix, low, high);
        low *= scales[row * 2 + matrix / 4];
        high *= scales[row * 2 + matrix / 4];
        if (HAS_OFFSET) {
            low += offsets[row * 2 + matrix / 4];
            high += offsets[row * 2 + matrix / 4];
        }
        a[i * 4] = low.x;
        a[i * 4 + 1] = low.y;
        a[i * 4 + 2] = high.x;
        a[i * 4 + 3] = high.y;
    }
    return a;
}

void multiply(uint chunk, uint next) {
    [[unroll]] for (uint i = 0; i < LANE_ROWS; i++) {
        blocks[i] = codes[i];
        vec2 scale;
        Offset offset;
        unpack_scale(raw_scales[i], rows[i] + chunk * 4 + block_lane, scale, offset);
        scales[2 * i] = f16vec2(float16_t(scale.x));
        scales[2 * i + 1] = f16vec2(float16_t(scale.y));
        offsets[2 * i] = f16vec2(float16_t(of_group(offset, 0)));
        offsets[2 * i + 1] = f16vec2(float16_t(of_group(offset, 1)));
    }
    fetch(next);
    [[unroll]] for (uint matrix = 0; matrix < 8; matrix++) {
        Inputs b[FRAGMENTS_T];
        [[unroll]] for (uint t = 0; t < FRAGMENTS_T; t++) {
            b[t] = input_matrix(inputs[matrix % AHEAD * FRAGMENTS_T + t]);
        }
        if (matrix + AHEAD < 8) {
            fetch_inputs(chunk, matrix + AHEAD);
        } else {
            fetch_inputs(next, matrix + AHEAD - 8);
        }
        [[unroll]] for (uint f = 0; f < FRAGMENTS_N; f++) {
            const Weights a = weight_matrix(f, matrix);
            [[unroll]] for (uint t = 0; t < FRAGMENTS_T; t++) {
                sums[f * FRAGMENTS_T + t] = coopMatMulAdd(a, b[t], sums[f * FRAGMENTS_T + t]);
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

// Adds up the subgroups' parts of one matrix each, and writes them. It takes the index as it is: one that was put together
// from those of two loops keeps a driver from unrolling these, and so the sums from registers.
void store(uint index) {
    const uint f = index / FRAGMENTS_T;
    const uint fragment_t = index % FRAGMENTS_T;
    coopMatStore(sums[index], results, gl_SubgroupID * MATRIX_WORDS, 4, gl_CooperativeMatrixLayoutColumnMajor);
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < SUBGROUPS_N * MATRIX_WORDS; i += WORKGROUP) {
        vec4 values = vec4(0.0);
        [[unroll]] for (uint k = 0; k < SUBGROUPS_K; k++) {
            values += uintBitsToFloat(results[k * SUBGROUPS_N * MATRIX_WORDS + i]);
        }
        const uint t = fragment_t * FRAGMENT_TOKENS + i % MATRIX_WORDS / 4;
        const uint r = (i / MATRIX_WORDS * FRAGMENTS_N + f) * 16 + i % 4 * 4;
        const uint token = gl_WorkGroupID.x * TILE_T + t;
        if (SPLITS > 1) {
            p.partials.v[(((tile * SPLITS + gl_WorkGroupID.z) * TILE_T + t) * TILE_N + r) / 4] = values;
        } else if (token < p.tokens) {
            finish(token, gl_WorkGroupID.y * TILE_N + r, values);
        }
    }
    barrier();
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
    const uint subgroup_n = gl_SubgroupID % SUBGROUPS_N;
    const uint subgroup_k = gl_SubgroupID / SUBGROUPS_N;
    const uint chunks = p.blocks / 4;
    const uint split_chunks = (chunks + SPLITS - 1) / SPLITS;
    const uint begin = gl_WorkGroupID.z * split_chunks;
    const uint end = min(begin + split_chunks, chunks);
    const uint first_row = gl_WorkGroupID.y * TILE_N + subgroup_n * FRAGMENTS_N * 16 + gl_SubgroupInvocationID / 4;
    [[unroll]] for (uint i = 0; i < LANE_ROWS; i++) {
        rows[i] = min(first_row + i * 8, p.n - 1) * p.blocks;
    }
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T * FRAGMENTS_N; i++) {
        sums[i] = Sums(0.0);
    }
    // Everything is on its way before it is needed; past the end, the last chunk stands in.
    const uint first_chunk = min(begin + subgroup_k, chunks - 1);
    fetch(first_chunk);
    [[unroll]] for (uint matrix = 0; matrix < AHEAD; matrix++) {
        fetch_inputs(first_chunk, matrix);
    }
    for (uint chunk = begin + subgroup_k; chunk < end; chunk += SUBGROUPS_K) {
        multiply(chunk, min(chunk + SUBGROUPS_K, chunks - 1));
    }
    [[unroll]] for (uint i = 0; i < FRAGMENTS_N * FRAGMENTS_T; i++) {
        store(i);
    }
    if (SPLITS > 1) {
        join_splits();
    }
}

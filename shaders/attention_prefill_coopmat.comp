#version 460
// Causal attention of a tile of query tokens over the paged cache, on 16×16×16 matrix units.
// One workgroup owns one tile of one sequence (x) for HEADS query heads of one kv head (y); a row is a query of a head.
// A subgroup owns 16 of its 64 rows: their queries stay in its registers as halves, scaled by a power of two of the
// row's own, and so does their output, in single precision. Keys and values pass through shared memory, as halves.
// With SHARES subgroups for 16 rows each has a part of the head's elements, and they add up their parts of scores.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "include/pointers.glsl"
#include "include/attention.glsl"
#include KV
#include "include/pair.glsl"
#include FORM

layout(constant_id = 0) const uint WORKGROUP = 128; // 4 * SUBGROUP
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint SUBGROUP = 32; // 32 or 64: the subgroup's size
layout(constant_id = 2) const uint HEAD_DIM = 64; // a multiple of 16
layout(constant_id = 3) const uint HEADS = 1; // query heads of a workgroup, at most 64 / SHARES
layout(constant_id = 4) const uint BLOCK_SIZE = 16;
layout(constant_id = 5) const float SOFT_CAP = 0;
layout(constant_id = 6) const bool PREFETCH = true; // the next keys and values are under way while these are used
layout(constant_id = 7) const uint SHARES = 1; // 1 or 2; HEAD_DIM is a multiple of 32 * SHARES with 2, and SUBGROUP 32
layout(constant_id = 8) const bool HAS_SINKS = false;

layout(push_constant, scalar) uniform P {
    Vec4s q; // (tokens, num_heads, HEAD_DIM), scaled
    uint64_t k_cache; // (blocks, num_kv_heads, BLOCK_SIZE, HEAD_DIM)
    uint64_t v_cache; // as k_cache
    OutValues y; // (tokens, num_heads, HEAD_DIM), in the form
    OutScales y_scale;
    OutCounters counters;
    Uvec2s tiles; // (tiles): the sequence's row, its first query in this step's chunk
    Uints query_start; // (sequences)
    Uints query_len; // (sequences)
    Uints context_len; // (sequences)
    Uints block_table; // (sequences, max_blocks)
    Floats sinks; // (num_heads), read if HAS_SINKS
    uint max_blocks;
    uint window;
    uint num_heads;
    uint num_kv_heads;
    uint num_counters;
} p;

const uint ROWS = 64 / SHARES;
const uint QUERIES = ROWS / HEADS; // queries of a tile
const uint KEYS = 32 / SHARES; // between two barriers
const uint BLOCKS = HEAD_DIM / 8; // of a row, 8 halves each
const uint STRIDE = BLOCKS + 1; // of a staged row; the padding spreads the banks
const uint VALUES = KEYS * STRIDE; // where the staged values begin
const uint FRAGMENTS = HEAD_DIM / 16 / SHARES; // of a subgroup
const uint ROW_LOADS = BLOCKS / KV_OCTETS;
const uint LOADS = (KEYS * ROW_LOADS + WORKGROUP - 1) / WORKGROUP; // of a lane, for keys and as many for values
const uint ROW_LANES = SUBGROUP / 16; // lanes that share a row of scores
const uint LANE_KEYS = KEYS / ROW_LANES;
const uint SCORE_STRIDE = KEYS / 4 + 1; // in vec4s
const uint WEIGHT_STRIDE = KEYS / 8 + 1;
const uint WEIGHTS = 16 * WEIGHT_STRIDE;
const uint STORED = NEEDS_NEIGHBOURS ? 2 : 1; // matrices of output at a time: a block is as wide as two
const uint STORED_QUADS = 4 * STORED;
const uint SCORES = 16 * (SCORE_STRIDE > STORED_QUADS ? SCORE_STRIDE : STORED_QUADS); // of a subgroup
const float LOWEST = -1e30; // a maximum over nothing; its differences stay finite
const float MASKED = -3e38;

shared uvec4 staged[2 * KEYS * STRIDE]; // at first (ROWS, STRIDE) queries, then keys and values, (KEYS, STRIDE) each
shared vec4 scores[4 * SCORES]; // (subgroups, 16, SCORE_STRIDE); also a factor for each row, 16 times, and output
shared uvec4 weights[4 * WEIGHTS]; // (subgroups, 16, WEIGHT_STRIDE): probabilities as halves
shared float q_scales[ROWS];

KvStaged key_loads[LOADS];
KvStaged value_loads[LOADS];
coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> queries[FRAGMENTS];
coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[FRAGMENTS];

uint first_row = gl_SubgroupID / SHARES * 16;
uint first_fragment = gl_SubgroupID % SHARES * FRAGMENTS;
uint score_room = gl_SubgroupID * SCORES;
uint weight_room = gl_SubgroupID * WEIGHTS;
uint own_row = gl_SubgroupInvocationID / ROW_LANES; // of the subgroup's 16
uint row_part = gl_SubgroupInvocationID % ROW_LANES;

// Waits for the subgroups that share rows.
void rows_barrier() {
    if (SHARES > 1)
        barrier();
    else
        subgroupBarrier();
}

bool has_query(uint row, uint num_queries) {
    return row < QUERIES * HEADS && row / HEADS < num_queries;
}

// Where a row's query lies in q, in vec4s; false for a row without a query.
bool locate(uint row, uint token, uint num_queries, uint head, out uint64_t offset) {
    offset = uint64_t((token + row / HEADS) * p.num_heads + head + row % HEADS) * (HEAD_DIM / 4);
    return has_query(row, num_queries);
}

// Brings rows of q into halves, and the subgroup's part of them into its registers.
void load_queries(uint token, uint num_queries, uint head) {
    const uint lane_vectors = (HEAD_DIM / 4 + SUBGROUP - 1) / SUBGROUP;
    const uint own = 16 / SHARES;
    [[dont_unroll]] for (uint row = gl_SubgroupID * own; row < gl_SubgroupID * own + own; ++row) {
        uint64_t offset;
        bool live = locate(row, token, num_queries, head, offset);
        vec4 values[lane_vectors];
        float largest = 0;
        [[unroll]] for (uint i = 0; i < lane_vectors; ++i) {
            uint at = gl_SubgroupInvocationID + i * SUBGROUP;
            values[i] = live && at < HEAD_DIM / 4 ? (p.q + offset + at).v : vec4(0);
            vec4 magnitudes = abs(values[i]);
            largest = max(largest, max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w)));
        }
        int exponent = int(floatBitsToUint(subgroupMax(largest)) >> 23) - 127;
        int shift = clamp(13 - exponent, -113, 113); // both powers are normal floats
        float factor = uintBitsToFloat(uint(127 + shift) << 23);
        if (subgroupElect())
            q_scales[row] = uintBitsToFloat(uint(127 - shift) << 23);
        [[unroll]] for (uint i = 0; i < lane_vectors; ++i) {
            uint at = gl_SubgroupInvocationID + i * SUBGROUP;
            vec4 value = values[i] * factor;
            uvec2 halves = uvec2(pair(value.x, value.y), pair(value.z, value.w));
            if (at < HEAD_DIM / 4) {
                if (at % 2 == 0)
                    staged[row * STRIDE + at / 2].xy = halves;
                else
                    staged[row * STRIDE + at / 2].zw = halves;
            }
        }
    }
    rows_barrier();
    [[unroll]] for (uint i = 0; i < FRAGMENTS; ++i)
        coopMatLoad(queries[i], staged, first_row * STRIDE + 2 * (first_fragment + i), STRIDE,
                    gl_CooperativeMatrixLayoutRowMajor);
    barrier();
}

KvRow row_of(uint64_t cache, uint slot, uint kv_head) {
    return kv_row(cache, slot, kv_head, p.num_kv_heads, HEAD_DIM, BLOCK_SIZE);
}

// A lane without a key takes the last one, whose score will be masked.
void fetch(Uints table, uint kv_head, uint base, uint end) {
    [[unroll]] for (uint i = 0; i < LOADS; ++i) {
        uint at = min(gl_LocalInvocationID.x + i * WORKGROUP, KEYS * ROW_LOADS - 1);
        uint slot = cache_slot(table, min(base + at / ROW_LOADS, end - 1), BLOCK_SIZE);
        uint element = at % ROW_LOADS * (8 * KV_OCTETS);
        key_loads[i] = kv_fetch_staged(row_of(p.k_cache, slot, kv_head), element);
        value_loads[i] = kv_fetch_staged(row_of(p.v_cache, slot, kv_head), element);
    }
}

void stage() {
    [[unroll]] for (uint i = 0; i < LOADS; ++i) {
        uint at = gl_LocalInvocationID.x + i * WORKGROUP;
        uint to = at / ROW_LOADS * STRIDE + at % ROW_LOADS * KV_OCTETS;
        if (at < KEYS * ROW_LOADS)
            [[unroll]] for (uint j = 0; j < KV_OCTETS; ++j) {
                staged[to + j] = kv_halves(key_loads[i], j);
                staged[VALUES + to + j] = kv_halves(value_loads[i], j);
            }
    }
}

void score_keys() {
    [[unroll]] for (uint j = 0; j < KEYS / 16; ++j) {
        coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> score =
            coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
        [[unroll]] for (uint i = 0; i < FRAGMENTS; ++i) {
            coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> keys;
            coopMatLoad(keys, staged, j * 16 * STRIDE + 2 * (first_fragment + i), STRIDE,
                        gl_CooperativeMatrixLayoutColumnMajor);
            score = coopMatMulAdd(queries[i], keys, score);
        }
        coopMatStore(score, scores, score_room + 4 * j, SCORE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    }
    rows_barrier();
}

// Four scores of a row, the sums of what the subgroups that share it have.
vec4 row_scores(uint at) {
    vec4 sum = scores[gl_SubgroupID / SHARES * SHARES * SCORES + at];
    [[unroll]] for (uint share = 1; share < SHARES; ++share)
        sum += scores[(gl_SubgroupID / SHARES * SHARES + share) * SCORES + at];
    return sum;
}

// Multiplies each row of the output by a factor that the row's lanes have.
void scale_sums(float factor) {
    rows_barrier(); // what the room held has been read
    [[unroll]] for (uint i = 0; i < 4 / ROW_LANES; ++i)
        scores[score_room + own_row * 4 + row_part * (4 / ROW_LANES) + i] = vec4(factor);
    subgroupBarrier();
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> factors;
    coopMatLoad(factors, scores, score_room, 4, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0; i < FRAGMENTS; ++i)
        sums[i] *= factors;
}

// Adds the values with the weights of the lanes' rows.
void add_values() {
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> weight[KEYS / 16];
    [[unroll]] for (uint j = 0; j < KEYS / 16; ++j)
        coopMatLoad(weight[j], weights, weight_room + 2 * j, WEIGHT_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0; i < FRAGMENTS; ++i)
        [[unroll]] for (uint j = 0; j < KEYS / 16; ++j) {
            coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> values;
            coopMatLoad(values, staged, VALUES + j * 16 * STRIDE + 2 * (first_fragment + i), STRIDE,
                        gl_CooperativeMatrixLayoutRowMajor);
            sums[i] = coopMatMulAdd(weight[j], values, sums[i]);
        }
}

void main() {
    uvec2 tile = (p.tiles + gl_WorkGroupID.x).v;
    uint sequence = tile.x;
    uint num_queries = min(QUERIES, (p.query_len + sequence).v - tile.y);
    uint context = (p.context_len + sequence).v;
    uint position = context - (p.query_len + sequence).v + tile.y; // of the tile's first query
    uint token = (p.query_start + sequence).v + tile.y;
    uint head = gl_WorkGroupID.y * HEADS; // the first of the workgroup's query heads
    uint kv_head = head / (p.num_heads / p.num_kv_heads);
    Uints table = p.block_table + uint64_t(sequence) * p.max_blocks;

    if (gl_WorkGroupID.y == 0) {
        if (gl_LocalInvocationID.x < num_queries)
            begin_row(p.y_scale, token + gl_LocalInvocationID.x);
        if (gl_WorkGroupID.x == 0)
            clear_counters(p.counters, p.num_counters, gl_LocalInvocationID.x, WORKGROUP);
    }

    load_queries(token, num_queries, head);
    [[unroll]] for (uint i = 0; i < FRAGMENTS; ++i)
        sums[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);

    uint row = first_row + own_row;
    uint last = position + row / HEADS; // the row's last key
    uint first = first_key(last + 1, p.window);
    uint end = position + num_queries;
    float q_scale = q_scales[row];
    float maximum = LOWEST;
    float sum = 0;

    uint base = first_key(position + 1, p.window);
    if (PREFETCH)
        fetch(table, kv_head, base, end);
    for (; base < end; base += KEYS) {
        if (!PREFETCH)
            fetch(table, kv_head, base, end);
        stage();
        barrier();
        if (PREFETCH && base + KEYS < end)
            fetch(table, kv_head, base + KEYS, end);
        score_keys();

        vec4 own[LANE_KEYS / 4];
        float highest = maximum;
        [[unroll]] for (uint i = 0; i < LANE_KEYS / 4; ++i) {
            own[i] = row_scores(own_row * SCORE_STRIDE + row_part * (LANE_KEYS / 4) + i) * q_scale;
            [[unroll]] for (uint j = 0; j < 4; ++j) {
                uint key = base + row_part * LANE_KEYS + 4 * i + j;
                if (SOFT_CAP > 0)
                    own[i][j] = soft_capped(own[i][j], SOFT_CAP);
                if (key < first || key > last || key >= end)
                    own[i][j] = MASKED;
                highest = max(highest, own[i][j]);
            }
        }
        [[unroll]] for (uint step = 1; step < ROW_LANES; step *= 2)
            highest = max(highest, subgroupShuffleXor(highest, step));
        float rescale = exp(maximum - highest);
        maximum = highest;
        sum *= rescale;
        [[unroll]] for (uint i = 0; i < LANE_KEYS / 8; ++i) {
            vec4 low = exp(own[2 * i] - highest);
            vec4 high = exp(own[2 * i + 1] - highest);
            sum += dot(low, vec4(1)) + dot(high, vec4(1));
            weights[weight_room + own_row * WEIGHT_STRIDE + row_part * (LANE_KEYS / 8) + i] =
                uvec4(pair(low.x, low.y), pair(low.z, low.w), pair(high.x, high.y), pair(high.z, high.w));
        }
        scale_sums(rescale);
        add_values();
        barrier();
    }

    [[unroll]] for (uint step = 1; step < ROW_LANES; step *= 2)
        sum += subgroupShuffleXor(sum, step);
    if (HAS_SINKS)
        sum += sink_share((p.sinks + head + row % HEADS).v, maximum);
    scale_sums(1 / sum);
    [[unroll]] for (uint i = 0; i < FRAGMENTS; i += STORED) {
        subgroupBarrier();
        [[unroll]] for (uint j = 0; j < STORED; ++j)
            coopMatStore(sums[i + j], scores, score_room + 4 * j, STORED_QUADS, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        [[unroll]] for (uint j = 0; j < 16 * STORED_QUADS / SUBGROUP; ++j) {
            uint at = gl_SubgroupInvocationID + j * SUBGROUP;
            uint stored_row = first_row + at / STORED_QUADS;
            uint quad = (head + stored_row % HEADS) * (HEAD_DIM / 4) + 4 * (first_fragment + i) + at % STORED_QUADS;
            if (has_query(stored_row, num_queries))
                store_output(p.y, p.y_scale, token + stored_row / HEADS, p.num_heads * (HEAD_DIM / 4), quad,
                             scores[score_room + at]);
        }
    }
}

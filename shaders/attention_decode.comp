#version 460
// Attention of one query token per item over the paged cache, cut into splits of the context (flash-decoding).
// One workgroup owns one split (x) for HEADS query heads of one kv head (y) of one item (z). LANES lanes share a key.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "include/pointers.glsl"
#include "include/attention.glsl"
#include "include/attention_splits.glsl"
#include KV

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEAD_DIM = 64; // a multiple of 8 * LANES
layout(constant_id = 2) const uint HEADS = 1; // query heads of a workgroup
layout(constant_id = 3) const uint BLOCK_SIZE = 16;
layout(constant_id = 4) const uint LANES = 8; // a power of two, at most the subgroup's size
layout(constant_id = 5) const uint TILE = 64; // keys between two barriers
layout(constant_id = 6) const uint MAX_SPLITS = 32;
layout(constant_id = 7) const float SOFT_CAP = 0;
layout(constant_id = 8) const uint UNROLL = 1; // keys whose loads a lane has under way at once

layout(push_constant, scalar) uniform P {
    Vec4s q; // (tokens, num_heads, HEAD_DIM), scaled
    uint64_t k_cache; // (blocks, num_kv_heads, BLOCK_SIZE, HEAD_DIM)
    uint64_t v_cache; // as k_cache
    Vec4s y; // (tokens, num_heads, HEAD_DIM)
    Vec4s partials; // (items, num_heads, MAX_SPLITS, HEAD_DIM + 4)
    Uints items; // (items): the sequence's row
    Uints query_start; // (sequences)
    Uints context_len; // (sequences)
    Uints block_table; // (sequences, max_blocks)
    uint max_blocks;
    uint window;
    uint num_heads;
    uint num_kv_heads;
} p;

const uint CHUNKS = HEAD_DIM / 8 / LANES; // 8 elements each, of one key, in one lane
const uint KEYS = WORKGROUP / LANES; // keys at a time
const uint MAX_SUBGROUPS = 64;
const float LOWEST = -1e30; // a maximum over nothing; its differences stay finite

shared float scores[HEADS * TILE]; // then probabilities
shared uint rows[TILE];
shared float maxima[HEADS * MAX_SUBGROUPS]; // of the subgroups, at the end their sums
shared vec4 merged[HEADS * HEAD_DIM / 4];

vec4 q[HEADS * CHUNKS * 2];
vec4 acc[HEADS * CHUNKS * 2];
float maximum[HEADS];
float sum[HEADS];

uint lane = gl_LocalInvocationID.x % LANES;
uint key_lane = gl_LocalInvocationID.x / LANES;

uint64_t cache_address(uint64_t cache, uint row) {
    return cache + uint64_t(row) * (HEAD_DIM * KV_BYTES);
}

// The sum over the lanes that share a key.
float lanes_sum(float value) {
    if (LANES == gl_SubgroupSize)
        return subgroupAdd(value);
    for (uint step = 1; step < LANES; step *= 2)
        value += subgroupShuffleXor(value, step);
    return value;
}

// Scores of the tile's keys into shared memory; returns after each subgroup has left its maxima there.
void score_tile(Uints table, uint kv_head, uint first, uint count) {
    float highest[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; ++h)
        highest[h] = LOWEST;
    for (uint base = 0; base < count; base += KEYS * UNROLL) {
        uint row[UNROLL];
        vec4 low[UNROLL * CHUNKS], high[UNROLL * CHUNKS];
        [[unroll]] for (uint u = 0; u < UNROLL; ++u) // past the end, the last key stands in
            row[u] = cache_row(table, first + min(base + u * KEYS + key_lane, count - 1), kv_head, p.num_kv_heads, BLOCK_SIZE);
        [[unroll]] for (uint u = 0; u < UNROLL; ++u)
            [[unroll]] for (uint c = 0; c < CHUNKS; ++c) {
                uint i = u * CHUNKS + c;
                kv_load8(cache_address(p.k_cache, row[u]), 8 * (c * LANES + lane), low[i], high[i]);
            }
        [[unroll]] for (uint u = 0; u < UNROLL; ++u) {
            uint key = base + u * KEYS + key_lane;
            if (lane == 0 && key < count)
                rows[key] = row[u];
            [[unroll]] for (uint h = 0; h < HEADS; ++h) {
                float score = 0;
                [[unroll]] for (uint c = 0; c < CHUNKS; ++c) {
                    uint i = 2 * (h * CHUNKS + c);
                    score += dot(q[i], low[u * CHUNKS + c]) + dot(q[i + 1], high[u * CHUNKS + c]);
                }
                score = lanes_sum(score);
                if (SOFT_CAP > 0)
                    score = soft_capped(score, SOFT_CAP);
                highest[h] = max(highest[h], score);
                if (lane == 0 && key < count)
                    scores[h * TILE + key] = score;
            }
        }
    }
    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        highest[h] = subgroupMax(highest[h]);
        if (subgroupElect())
            maxima[h * MAX_SUBGROUPS + gl_SubgroupID] = highest[h];
    }
}

// Turns the tile's scores into probabilities relative to the new maxima, and rescales what has been summed.
void softmax_tile(uint count) {
    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        float highest = maximum[h];
        for (uint i = 0; i < gl_NumSubgroups; ++i)
            highest = max(highest, maxima[h * MAX_SUBGROUPS + i]);
        float rescale = exp(maximum[h] - highest);
        maximum[h] = highest;
        sum[h] *= rescale;
        [[unroll]] for (uint i = 0; i < 2 * CHUNKS; ++i)
            acc[2 * h * CHUNKS + i] *= rescale;
        for (uint key = gl_LocalInvocationID.x; key < count; key += WORKGROUP) {
            float probability = exp(scores[h * TILE + key] - highest);
            scores[h * TILE + key] = probability;
            sum[h] += probability;
        }
    }
}

void accumulate_tile(uint count) {
    for (uint base = key_lane; base < count; base += KEYS * UNROLL) {
        vec4 low[UNROLL * CHUNKS], high[UNROLL * CHUNKS];
        [[unroll]] for (uint u = 0; u < UNROLL; ++u) {
            uint64_t row = cache_address(p.v_cache, rows[min(base + u * KEYS, count - 1)]);
            [[unroll]] for (uint c = 0; c < CHUNKS; ++c)
                kv_load8(row, 8 * (c * LANES + lane), low[u * CHUNKS + c], high[u * CHUNKS + c]);
        }
        [[unroll]] for (uint u = 0; u < UNROLL; ++u) {
            uint key = base + u * KEYS;
            [[unroll]] for (uint h = 0; h < HEADS; ++h) {
                float probability = key < count ? scores[h * TILE + key] : 0;
                [[unroll]] for (uint c = 0; c < CHUNKS; ++c) {
                    acc[2 * (h * CHUNKS + c)] += probability * low[u * CHUNKS + c];
                    acc[2 * (h * CHUNKS + c) + 1] += probability * high[u * CHUNKS + c];
                }
            }
        }
    }
}

// Sums acc over the workgroup into `merged`, and sum into every lane, one subgroup after the other.
void merge() {
    [[unroll]] for (uint i = 0; i < HEADS * CHUNKS * 2; ++i)
        for (uint step = LANES; step < gl_SubgroupSize; step *= 2)
            acc[i] += subgroupShuffleXor(acc[i], step);
    for (uint turn = 0; turn < gl_NumSubgroups; ++turn) {
        if (gl_SubgroupID == turn && gl_SubgroupInvocationID < LANES)
            [[unroll]] for (uint i = 0; i < HEADS * CHUNKS * 2; ++i) {
                uint at = i * LANES + lane;
                merged[at] = turn == 0 ? acc[i] : merged[at] + acc[i];
            }
        barrier();
    }
    [[unroll]] for (uint i = 0; i < HEADS * CHUNKS * 2; ++i)
        acc[i] = merged[i * LANES + lane];
}

// The workgroup's sum of each head's probabilities, in every lane.
void merge_sums() {
    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        sum[h] = subgroupAdd(sum[h]);
        if (WORKGROUP > gl_SubgroupSize) {
            if (subgroupElect())
                maxima[h * MAX_SUBGROUPS + gl_SubgroupID] = sum[h];
            barrier();
            sum[h] = 0;
            for (uint i = 0; i < gl_NumSubgroups; ++i)
                sum[h] += maxima[h * MAX_SUBGROUPS + i];
        }
    }
}

void main() {
    uint item = gl_WorkGroupID.z;
    uint sequence = (p.items + item).v;
    uint context = (p.context_len + sequence).v;
    uint first = first_key(context, p.window);
    uint split_keys = tiles_per_split(context - first, TILE, MAX_SPLITS) * TILE;
    uint begin = first + gl_WorkGroupID.x * split_keys;
    if (begin >= context)
        return;
    uint end = min(begin + split_keys, context);

    uint head = gl_WorkGroupID.y * HEADS; // the first of the workgroup's query heads
    uint kv_head = head / (p.num_heads / p.num_kv_heads);
    uint token = (p.query_start + sequence).v;
    Uints table = p.block_table + uint64_t(sequence) * p.max_blocks;

    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        Vec4s source = p.q + uint64_t(token * p.num_heads + head + h) * (HEAD_DIM / 4);
        [[unroll]] for (uint c = 0; c < CHUNKS; ++c)
            [[unroll]] for (uint j = 0; j < 2; ++j) {
                q[2 * (h * CHUNKS + c) + j] = (source + 2 * (c * LANES + lane) + j).v;
                acc[2 * (h * CHUNKS + c) + j] = vec4(0);
            }
        maximum[h] = LOWEST;
        sum[h] = 0;
    }

    for (uint tile = begin; tile < end; tile += TILE) {
        uint count = min(TILE, end - tile);
        score_tile(table, kv_head, tile, count);
        barrier();
        softmax_tile(count);
        barrier();
        accumulate_tile(count);
        barrier();
    }
    merge_sums();
    if (WORKGROUP > LANES)
        merge();
    if (key_lane != 0)
        return;

    bool whole = first + split_keys >= context;
    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        uint64_t partial = uint64_t((item * p.num_heads + head + h) * MAX_SPLITS + gl_WorkGroupID.x) * (HEAD_DIM / 4 + 1);
        Vec4s target = whole ? p.y + uint64_t(token * p.num_heads + head + h) * (HEAD_DIM / 4) : p.partials + partial;
        float scale = whole ? 1 / sum[h] : 1;
        [[unroll]] for (uint c = 0; c < CHUNKS; ++c)
            [[unroll]] for (uint j = 0; j < 2; ++j)
                (target + 2 * (c * LANES + lane) + j).v = acc[2 * (h * CHUNKS + c) + j] * scale;
        if (!whole && lane == 0)
            (target + HEAD_DIM / 4).v = vec4(maximum[h], sum[h], 0, 0);
    }
}

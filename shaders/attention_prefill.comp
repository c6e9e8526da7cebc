#version 460
// Causal attention of a tile of query tokens over the paged cache, with an online softmax.
// One workgroup owns one tile of one sequence (x) for HEADS query heads of one kv head (y); a row is a query of a head.
// A lane owns four rows of it: with KEYS keys for the scores, with eight elements of the head for the output.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#include "include/pointers.glsl"
#include "include/attention.glsl"
#include KV
#include FORM

layout(constant_id = 0) const uint WORKGROUP = 32; // ROWS / 4 * HEAD_DIM / 8
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEAD_DIM = 64; // a multiple of 8
layout(constant_id = 2) const uint HEADS = 1; // query heads of a workgroup, at most ROWS
layout(constant_id = 3) const uint BLOCK_SIZE = 16;
layout(constant_id = 4) const uint ROWS = 16; // a multiple of 4
layout(constant_id = 5) const float SOFT_CAP = 0;
layout(constant_id = 6) const uint KEYS = 4; // of one lane at a time
layout(constant_id = 7) const bool HAS_SINKS = false;
layout(constant_id = 8) const uint LATENT = 0; // values are the first so many elements of keys; 0 = they have a cache of their own

layout(push_constant, scalar) uniform P {
    Vec4s q; // (tokens, num_heads, HEAD_DIM), scaled
    uint64_t k_cache; // (blocks, num_kv_heads, BLOCK_SIZE, HEAD_DIM)
    uint64_t v_cache; // as k_cache; nothing with LATENT
    OutValues y; // (tokens, num_heads, VALUE_DIM), in the form
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

const uint QUERIES = ROWS / HEADS; // queries of a tile
const uint ROW_GROUPS = ROWS / 4;
const uint COLUMNS = HEAD_DIM / 8; // lanes with the same rows
const uint VALUE_DIM = LATENT > 0 ? LATENT : HEAD_DIM;
const uint VALUE_COLUMNS = VALUE_DIM / 8; // lanes with output
const uint QUADS = VALUE_DIM / 4;
const uint TILE = KEYS * COLUMNS; // keys between two barriers
const float LOWEST = -1e30; // a maximum over nothing; its differences stay finite
const float MASKED = -3e38;

shared vec4 q[ROWS * HEAD_DIM / 4]; // (HEAD_DIM / 4, 4, ROW_GROUPS): row 4 * group + i of a head's j-th vec4 is at [j, i, group]
shared vec4 probabilities[TILE * ROW_GROUPS]; // (TILE, ROW_GROUPS)
shared vec4 partial[COLUMNS * ROW_GROUPS]; // (COLUMNS, ROW_GROUPS): maxima, at the end sums
shared uint slots[TILE];

uint group = gl_LocalInvocationID.x % ROW_GROUPS;
uint column = gl_LocalInvocationID.x / ROW_GROUPS;

bool has_query(uint row, uint num_queries) {
    return row < QUERIES * HEADS && row / HEADS < num_queries;
}

// Where a row's query lies in q, in vec4s; false for a row without a query.
bool locate(uint row, uint token, uint num_queries, uint head, out uint64_t offset) {
    offset = uint64_t((token + row / HEADS) * p.num_heads + head + row % HEADS) * (HEAD_DIM / 4);
    return has_query(row, num_queries);
}

KvRow row_of(uint64_t cache, uint slot, uint kv_head) {
    return kv_row(cache, slot, kv_head, p.num_kv_heads, HEAD_DIM, BLOCK_SIZE);
}

// Scores of the lane's four rows with its keys; scores[k] has key k's.
void score(uint own_slots[KEYS], uint kv_head, out vec4 scores[KEYS]) {
    [[unroll]] for (uint k = 0; k < KEYS; ++k)
        scores[k] = vec4(0);
    [[dont_unroll]] for (uint c = 0; c < COLUMNS; ++c) {
        vec4 query_low[4], query_high[4];
        [[unroll]] for (uint i = 0; i < 4; ++i) {
            query_low[i] = q[(8 * c + i) * ROW_GROUPS + group];
            query_high[i] = q[(8 * c + 4 + i) * ROW_GROUPS + group];
        }
        [[unroll]] for (uint k = 0; k < KEYS; ++k) {
            vec4 low, high;
            kv_load8(row_of(p.k_cache, own_slots[k], kv_head), 8 * c, low, high);
            [[unroll]] for (uint i = 0; i < 4; ++i)
                scores[k][i] += dot(query_low[i], low) + dot(query_high[i], high);
        }
    }
}

// Stores the output by way of shared memory, so that neighbouring lanes have neighbouring elements of a row.
void store_side_by_side(uint token, uint num_queries, uint head, vec4 low[4], vec4 high[4]) {
    if (column < VALUE_COLUMNS)
        [[unroll]] for (uint i = 0; i < 4; ++i) {
            q[(4 * group + i) * QUADS + 2 * column] = low[i];
            q[(4 * group + i) * QUADS + 2 * column + 1] = high[i];
        }
    barrier();
    for (uint i = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; i < ROWS * QUADS; i += WORKGROUP) {
        uint row = i / QUADS;
        uint quad = (head + row % HEADS) * QUADS + i % QUADS;
        if (has_query(row, num_queries))
            store_output(p.y, p.y_scale, token + row / HEADS, p.num_heads * QUADS, quad, q[i]);
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

    [[dont_unroll]] for (uint i = gl_LocalInvocationID.x; i < ROWS * HEAD_DIM / 4; i += WORKGROUP) {
        uint row = i / (HEAD_DIM / 4);
        uint j = i % (HEAD_DIM / 4);
        uint64_t offset;
        bool live = locate(row, token, num_queries, head, offset);
        q[(4 * j + row % 4) * ROW_GROUPS + row / 4] = live ? (p.q + offset + j).v : vec4(0);
    }
    barrier();

    uvec4 last = position + (4 * group + uvec4(0, 1, 2, 3)) / HEADS; // the rows' last keys
    uint end = position + num_queries;
    vec4 maximum = vec4(LOWEST);
    vec4 sum = vec4(0);
    vec4 acc_low[4], acc_high[4];
    [[unroll]] for (uint i = 0; i < 4; ++i)
        acc_low[i] = acc_high[i] = vec4(0);

    for (uint base = first_key(position + 1, p.window); base < end; base += TILE) {
        uint own_slots[KEYS];
        [[unroll]] for (uint k = 0; k < KEYS; ++k) { // a lane without a key takes the last one, and masks it
            uint key = min(base + k * COLUMNS + column, end - 1);
            own_slots[k] = cache_slot(table, key, BLOCK_SIZE);
        }
        vec4 scores[KEYS];
        score(own_slots, kv_head, scores);
        vec4 highest = maximum;
        [[unroll]] for (uint k = 0; k < KEYS; ++k) {
            uint key = base + k * COLUMNS + column;
            [[unroll]] for (uint i = 0; i < 4; ++i) {
                if (SOFT_CAP > 0)
                    scores[k][i] = soft_capped(scores[k][i], SOFT_CAP);
                if (key > last[i] || (p.window != NO_WINDOW && last[i] - key >= p.window))
                    scores[k][i] = MASKED;
            }
            highest = max(highest, scores[k]);
        }
        partial[column * ROW_GROUPS + group] = highest;
        barrier(); // the maxima are there, and the last tile's probabilities and slots have been read

        [[dont_unroll]] for (uint c = 0; c < COLUMNS; ++c)
            highest = max(highest, partial[c * ROW_GROUPS + group]);
        vec4 rescale = exp(maximum - highest);
        maximum = highest;
        sum *= rescale;
        [[unroll]] for (uint k = 0; k < KEYS; ++k) {
            vec4 probability = exp(scores[k] - highest);
            sum += probability;
            if (group == 0)
                slots[k * COLUMNS + column] = own_slots[k];
            probabilities[(k * COLUMNS + column) * ROW_GROUPS + group] = probability;
        }
        barrier();

        [[unroll]] for (uint i = 0; i < 4; ++i) {
            acc_low[i] *= rescale[i];
            acc_high[i] *= rescale[i];
        }
        uint count = column < VALUE_COLUMNS ? min(TILE, end - base) : 0;
        for (uint k = 0; k < count; ++k) {
            vec4 low, high;
            kv_load8(row_of(LATENT > 0 ? p.k_cache : p.v_cache, slots[k], kv_head), 8 * column, low, high);
            vec4 probability = probabilities[k * ROW_GROUPS + group];
            [[unroll]] for (uint i = 0; i < 4; ++i) {
                acc_low[i] += probability[i] * low;
                acc_high[i] += probability[i] * high;
            }
        }
    }

    barrier(); // the last tile's maxima have been read
    partial[column * ROW_GROUPS + group] = sum;
    barrier();
    vec4 total = vec4(0);
    [[dont_unroll]] for (uint c = 0; c < COLUMNS; ++c)
        total += partial[c * ROW_GROUPS + group];
    [[unroll]] for (uint i = 0; i < 4; ++i) {
        if (HAS_SINKS)
            total[i] += sink_share((p.sinks + head + (4 * group + i) % HEADS).v, maximum[i]);
        acc_low[i] /= total[i];
        acc_high[i] /= total[i];
    }
    if (NEEDS_NEIGHBOURS)
        store_side_by_side(token, num_queries, head, acc_low, acc_high);
    else
        [[unroll]] for (uint i = 0; i < 4; ++i) {
            uint row = 4 * group + i;
            uint octet = (head + row % HEADS) * VALUE_COLUMNS + column;
            if (has_query(row, num_queries) && column < VALUE_COLUMNS)
                store_octet(p.y, p.y_scale, token + row / HEADS, p.num_heads * VALUE_COLUMNS, octet, acc_low[i],
                            acc_high[i]);
        }
}

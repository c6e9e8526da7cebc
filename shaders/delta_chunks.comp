#version 460
// The gated delta rule in chunks, the part with the state: chunk after chunk of a sequence, by what delta_chunk made of each, where
// the formulas are. A workgroup owns TILE columns of one head's S (along x), in shared memory, for the long run of tokens that
// begins in SHORTEST rows (along y). A lane has four columns of ROWS tokens, then of every GROUPS-th vec4 of keys. Chunks wait for
// each other, so what comes next is under way from memory while something is computed: by turns into one of two arrays, and without
// conditions, or compilers would wait to copy it. What is kept before a run's end is the state behind a chunk.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128; // TILE * CHUNK or a half or a quarter
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY_VECTORS = 32;
layout(constant_id = 2) const uint KEY_HEADS = 1;
layout(constant_id = 3) const uint VALUE_HEADS = 1;
layout(constant_id = 4) const uint VALUE_VECTORS = 32;
layout(constant_id = 5) const bool TILED = false; // as in delta_rule
layout(constant_id = 6) const uint TILE = 8; // vec4s of a head of values
layout(constant_id = 7) const uint AHEAD = 4; // vec4s of a head of keys that are under way, or tokens; 1, 2 or 4
const bool RATES = false; // of gates, which delta_chunk has read

#include "include/delta_gates.glsl"
#include "include/long_run.glsl"

layout(push_constant, scalar) uniform P {
    Vec4s qkv; // (tokens, row_columns): queries, keys, values, as delta_conv leaves them
    Vec4s chunks; // (tokens, VALUE_HEADS, CHUNK_VECTORS), as delta_chunk leaves them
    uint64_t state; // of each sequence state_bytes, of which (VALUE_HEADS, 4 * VALUE_VECTORS, KEY_VECTORS) from state_offset on
    Runs runs; // (tokens)
    Uints positions; // (tokens)
    Vec4s y; // (tokens, VALUE_HEADS, VALUE_VECTORS)
    uint row_columns; // in vec4s
    uint state_bytes;
    uint state_offset;
    uint num_rows;
} p;

const uint GROUPS = WORKGROUP / TILE; // lanes with the same columns
const uint ROWS = CHUNK / GROUPS;
const uint KEYS = (KEY_VECTORS + GROUPS - 1) / GROUPS;
const uint FACTORS = CHUNK * CHUNK / 4 / WORKGROUP; // vec4s of T that a lane brings in, and of P
const uint STRIDE = CHUNK / 4 + 1; // of a row of factors: neighbours begin in other banks

shared vec4 tokens[CHUNK * TILE]; // (CHUNK, TILE): V - diag(d) K S, then U
shared vec4 factors[CHUNK * STRIDE]; // (CHUNK, STRIDE): T, then P
shared vec2 decays[CHUNK]; // d and w

#include "include/long_chunks.glsl"
#include "include/state_tile.glsl"
#include "include/chunk_steps.glsl"

// Of the chunk that comes next: the first queries and keys, and all else that is read of it.
vec4 next_queries[ROWS * AHEAD], next_keys[ROWS * AHEAD];
vec4 next_values[ROWS], next_t[FACTORS], next_p[FACTORS];
vec2 next_decays[ROWS];
// Of this one, as arrays whose sizes are no constants of the language can't be passed: what the state and other tokens have for the
// lane's tokens, and keys of tokens that are added to the state.
vec4 sums[ROWS], found[ROWS], first_keys[AHEAD * KEYS];

Vec4s queries_of(uint row) {
    return p.qkv + uint64_t(row) * p.row_columns + key_head_of(head) * KEY_VECTORS;
}

Vec4s keys_of(uint row) {
    return queries_of(row) + KEY_HEADS * KEY_VECTORS;
}

Vec4s chunk_of(uint row) {
    return p.chunks + (uint64_t(row) * VALUE_HEADS + head) * CHUNK_VECTORS;
}

// Past the end of a head's values the last ones are computed again.
uint value_at() {
    return head * VALUE_VECTORS + min(tile + column, VALUE_VECTORS - 1);
}

// Past a chunk's end its last token is read again, and past the end of keys the last of them.
#define FETCH_ROWS(q4, k4, row, num_tokens, first)                                          \
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {                                            \
        uint token = min(ROWS * group + r, num_tokens - 1);                                 \
        Vec4s q = queries_of(row + token) + min(first, KEY_VECTORS - AHEAD);                \
        [[unroll]] for (uint u = 0; u < AHEAD; ++u) {                                       \
            q4[r * AHEAD + u] = (q + u).v;                                                  \
            k4[r * AHEAD + u] = (q + (KEY_HEADS * KEY_VECTORS + u)).v;                      \
        }                                                                                   \
    }

void fetch_chunk(uint row, uint num_tokens) {
    FETCH_ROWS(next_queries, next_keys, row, num_tokens, 0)
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        uint at = row + min(ROWS * group + r, num_tokens - 1);
        next_values[r] = (p.qkv + uint64_t(at) * p.row_columns + 2 * KEY_HEADS * KEY_VECTORS + value_at()).v;
        next_decays[r] = (chunk_of(at) + CHUNK / 2).v.xy;
    }
    [[unroll]] for (uint f = 0; f < FACTORS; ++f) {
        uint i = lane + f * WORKGROUP;
        Vec4s own = chunk_of(row + min(i / (CHUNK / 4), num_tokens - 1)) + i % (CHUNK / 4);
        next_t[f] = own.v;
        next_p[f] = (own + CHUNK / 4).v;
    }
}

#define ADD_ROWS(q4, k4, first)                                                             \
    [[unroll]] for (uint c = 0; c < 4 * AHEAD; ++c) {                                       \
        vec4 row = s[(4 * (first) + c) * TILE + column];                                    \
        [[unroll]] for (uint r = 0; r < ROWS; ++r) {                                        \
            sums[r] = fma(vec4(k4[r * AHEAD + c / 4][c % 4]), row, sums[r]);                \
            found[r] = fma(vec4(q4[r * AHEAD + c / 4][c % 4]), row, found[r]);              \
        }                                                                                   \
    }

// What the state has for the keys and the queries of a lane's tokens, into `sums` and `found`.
void find(uint row, uint num_tokens) {
    [[unroll]] for (uint r = 0; r < ROWS; ++r)
        sums[r] = found[r] = vec4(0);
    [[dont_unroll]] for (uint v = 0; v < KEY_VECTORS; v += 2 * AHEAD) {
        vec4 more_queries[ROWS * AHEAD], more_keys[ROWS * AHEAD];
        FETCH_ROWS(more_queries, more_keys, row, num_tokens, v + AHEAD)
        ADD_ROWS(next_queries, next_keys, v)
        FETCH_ROWS(next_queries, next_keys, row, num_tokens, v + 2 * AHEAD)
        if (KEY_VECTORS % (2 * AHEAD) == 0 || v + AHEAD < KEY_VECTORS)
            ADD_ROWS(more_queries, more_keys, v + AHEAD)
    }
}

#include "include/chunk_products.glsl"

void step_chunk(uint row, uint num_tokens, bool is_last, uint which, out uint next_tokens) {
    uint offset = next_offset(row, is_last);
    find(row, num_tokens);
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        uint token = ROWS * group + r;
        tokens[token * TILE + column] = token < num_tokens ? next_values[r] - next_decays[r].x * sums[r] : vec4(0);
        found[r] *= next_decays[r].x;
        if (column == 0)
            decays[token] = next_decays[r];
    }
    [[unroll]] for (uint f = 0; f < FACTORS; ++f) {
        uint i = lane + f * WORKGROUP;
        factors[i / (CHUNK / 4) * STRIDE + i % (CHUNK / 4)] = next_t[f];
    }
    find_end(offset, which);
    barrier();
    [[unroll]] for (uint r = 0; r < ROWS; ++r)
        sums[r] = vec4(0);
    ADD_TOKENS(sums)
    next_tokens = is_last ? 0 : ends[which ^ 1];
    barrier();
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        uint token = ROWS * group + r;
        tokens[token * TILE + column] = token < num_tokens ? sums[r] : vec4(0);
    }
    [[unroll]] for (uint f = 0; f < FACTORS; ++f) {
        uint i = lane + f * WORKGROUP;
        factors[i / (CHUNK / 4) * STRIDE + i % (CHUNK / 4)] = next_p[f];
    }
    end_was_found(which);
    FETCH_KEYS(first_keys, row, 0, num_tokens)
    fetch_next(row, num_tokens, is_last, next_tokens);
    barrier();
    ADD_TOKENS(found)
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        uint token = ROWS * group + r;
        if (token < num_tokens && tile + column < VALUE_VECTORS)
            (p.y + uint64_t(row + token) * (VALUE_HEADS * VALUE_VECTORS) + value_at()).v = found[r];
    }
    add_keys(row, num_tokens);
    barrier();
}

#version 460
// Mamba-2's recurrence in chunks, the part with the state: chunk after chunk of a sequence, by what ssm_chunk made of each, where the
// formulas are. A workgroup owns TILE columns of one head's S (along x), in shared memory, for the long run of tokens that begins in
// SHORTEST rows (along y). A lane has four columns of ROWS tokens, then of every GROUPS-th vec4 of keys. What comes next is under way
// from memory while something is computed, as in delta_chunks. What is kept before a run's end is the state behind a chunk.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"
#include "include/long_run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128; // TILE * CHUNK or a half or a quarter
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY_VECTORS = 32;
layout(constant_id = 2) const uint KEY_HEADS = 1;
layout(constant_id = 3) const uint VALUE_HEADS = 1;
layout(constant_id = 4) const uint VALUE_VECTORS = 16;
layout(constant_id = 5) const uint TILE = 8; // vec4s of a head of values
layout(constant_id = 6) const uint AHEAD = 4; // vec4s of a head of keys that are under way, or tokens; 1, 2 or 4

layout(push_constant, scalar) uniform P {
    Vec4s xbc; // (tokens, row_columns): values, keys, queries, as ssm_conv leaves them
    Floats skips; // (VALUE_HEADS)
    uint64_t chunks; // (tokens, left_bytes), as ssm_chunk leaves them
    uint64_t state; // of each sequence state_bytes, of which (VALUE_HEADS, 4 * VALUE_VECTORS, KEY_VECTORS) from state_offset on
    Runs runs; // (tokens)
    Uints positions; // (tokens)
    Vec4s y; // (tokens, VALUE_HEADS, VALUE_VECTORS)
    uint row_columns; // in vec4s
    uint left_bytes;
    uint state_bytes;
    uint state_offset;
    uint num_rows;
} p;

const uint GROUPS = WORKGROUP / TILE; // lanes with the same columns
const uint ROWS = CHUNK / GROUPS;
const uint KEYS = (KEY_VECTORS + GROUPS - 1) / GROUPS;
const uint FACTORS = CHUNK * CHUNK / 4 / WORKGROUP; // vec4s of P that a lane makes
const uint STRIDE = CHUNK / 4 + 1; // of a row of factors: neighbours begin in other banks

shared vec4 tokens[CHUNK * TILE]; // (CHUNK, TILE): X
shared vec4 factors[CHUNK * STRIDE]; // (CHUNK, STRIDE): P
shared vec2 decays[CHUNK]; // d and w
shared vec4 gates[CHUNK]; // sums of decays' logarithms up to a token, what rounding took of them, steps

#include "include/long_chunks.glsl"
#include "include/state_tile.glsl"
#include "include/chunk_steps.glsl"

// Of the chunk that comes next: the first queries, and all else that is read of it.
vec4 next_queries[ROWS * AHEAD], next_values[ROWS], next_products[FACTORS], next_gate;
// Of this one, as arrays whose sizes are no constants of the language can't be passed: what the lane's tokens find, and keys of tokens
// that are added to the state.
vec4 found[ROWS], first_keys[AHEAD * KEYS];

Vec4s keys_of(uint row) {
    uint key_head = head / (VALUE_HEADS / KEY_HEADS);
    return p.xbc + uint64_t(row) * p.row_columns + VALUE_HEADS * VALUE_VECTORS + key_head * KEY_VECTORS;
}

Vec4s chunk_of(uint row) {
    return Vec4s(p.chunks + uint64_t(row) * p.left_bytes);
}

// Past the end of a head's values the last ones are computed again.
uint value_at() {
    return head * VALUE_VECTORS + min(tile + column, VALUE_VECTORS - 1);
}

// Past a chunk's end its last token is read again, and past the end of keys the last of them.
#define FETCH_ROWS(q4, row, num_tokens, first)                                              \
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {                                            \
        Vec4s q = keys_of(row + min(ROWS * group + r, num_tokens - 1)) + KEY_HEADS * KEY_VECTORS; \
        [[unroll]] for (uint u = 0; u < AHEAD; ++u)                                         \
            q4[r * AHEAD + u] = (q + (min(first, KEY_VECTORS - AHEAD) + u)).v;              \
    }

void fetch_chunk(uint row, uint num_tokens) {
    FETCH_ROWS(next_queries, row, num_tokens, 0)
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        uint at = row + min(ROWS * group + r, num_tokens - 1);
        next_values[r] = (p.xbc + uint64_t(at) * p.row_columns + value_at()).v;
    }
    uint key_head = head / (VALUE_HEADS / KEY_HEADS);
    [[unroll]] for (uint f = 0; f < FACTORS; ++f) {
        uint i = lane + f * WORKGROUP;
        Vec4s own = chunk_of(row + min(i / (CHUNK / 4), num_tokens - 1)) + key_head * (CHUNK / 4);
        next_products[f] = (own + i % (CHUNK / 4)).v;
    }
    next_gate = (chunk_of(row + min(lane % CHUNK, num_tokens - 1)) + (KEY_HEADS * CHUNK / 4 + head)).v;
}

#define ADD_ROWS(q4, first)                                                                 \
    [[unroll]] for (uint c = 0; c < 4 * AHEAD; ++c) {                                       \
        vec4 row = s[(4 * (first) + c) * TILE + column];                                    \
        [[unroll]] for (uint r = 0; r < ROWS; ++r)                                          \
            found[r] = fma(vec4(q4[r * AHEAD + c / 4][c % 4]), row, found[r]);              \
    }

// What the state has for the queries of a lane's tokens.
void find(uint row, uint num_tokens) {
    [[unroll]] for (uint r = 0; r < ROWS; ++r)
        found[r] = vec4(0);
    [[dont_unroll]] for (uint v = 0; v < KEY_VECTORS; v += 2 * AHEAD) {
        vec4 more_queries[ROWS * AHEAD];
        FETCH_ROWS(more_queries, row, num_tokens, v + AHEAD)
        ADD_ROWS(next_queries, v)
        FETCH_ROWS(next_queries, row, num_tokens, v + 2 * AHEAD)
        if (KEY_VECTORS % (2 * AHEAD) == 0 || v + AHEAD < KEY_VECTORS)
            ADD_ROWS(more_queries, v + AHEAD)
    }
}

#include "include/chunk_products.glsl"

float decay_between(vec4 from, vec4 to) {
    return exp((to.x - from.x) + (to.y - from.y));
}

// P, d and w of this head.
void make_factors(uint num_tokens) {
    float skip = (p.skips + head).v;
    [[unroll]] for (uint f = 0; f < FACTORS; ++f) {
        uint i = lane + f * WORKGROUP, token = i / (CHUNK / 4), first = i % (CHUNK / 4) * 4;
        vec4 gate = gates[token], made;
        [[unroll]] for (uint c = 0; c < 4; ++c) {
            vec4 other = gates[first + c];
            float factor = decay_between(other, gate) * other.z * next_products[f][c];
            made[c] = first + c < token ? factor : first + c == token ? factor + skip : 0;
        }
        factors[token * STRIDE + i % (CHUNK / 4)] = made;
    }
    if (lane < CHUNK) {
        vec4 gate = gates[lane];
        decays[lane] = vec2(exp(gate.x + gate.y), decay_between(gate, gates[num_tokens - 1]) * gate.z);
    }
}

void step_chunk(uint row, uint num_tokens, bool is_last, uint which, out uint next_tokens) {
    uint offset = next_offset(row, is_last);
    if (lane < CHUNK)
        gates[lane] = next_gate;
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        uint token = ROWS * group + r;
        tokens[token * TILE + column] = token < num_tokens ? next_values[r] : vec4(0);
    }
    find_end(offset, which);
    find(row, num_tokens);
    barrier();
    next_tokens = is_last ? 0 : ends[which ^ 1];
    make_factors(num_tokens);
    end_was_found(which);
    FETCH_KEYS(first_keys, row, 0, num_tokens)
    fetch_next(row, num_tokens, is_last, next_tokens);
    barrier();
    [[unroll]] for (uint r = 0; r < ROWS; ++r)
        found[r] *= decays[ROWS * group + r].x;
    ADD_TOKENS(found)
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        uint token = ROWS * group + r;
        if (token < num_tokens && tile + column < VALUE_VECTORS)
            (p.y + uint64_t(row + token) * (VALUE_HEADS * VALUE_VECTORS) + value_at()).v = found[r];
    }
    add_keys(row, num_tokens);
    barrier();
}

#version 460
// RWKV-7's recurrence in chunks, the part with the state: chunk after chunk of a sequence, by what time_mix_chunk made of each, where
// the formulas are. A workgroup owns TILE columns of one head's S (along x), in shared memory, for the long run of tokens that
// begins in SHORTEST rows (along y). A lane has four columns of ROWS tokens, then of every GROUPS-th vec4 of keys. What comes next is
// under way from memory while something is computed, as in delta_chunks. What is kept before a run's end is the state behind a chunk.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"
#include "include/long_run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128; // TILE * CHUNK or a half or a quarter
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY_VECTORS = 16;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint TILE = 8; // vec4s of a head of values
layout(constant_id = 4) const uint AHEAD = 4; // vec4s of a head of keys that are under way, or tokens; 1, 2 or 4
#define VALUE_VECTORS KEY_VECTORS

layout(push_constant, scalar) uniform P {
    Vec4s w; // (tokens, HEADS, KEY_VECTORS), as b, x, v and y: D in a chunk's last row
    Vec4s b;
    Vec4s x;
    Vec4s v;
    Vec4s chunks; // (tokens, HEADS, LEFT_VECTORS), as time_mix_chunk leaves them
    uint64_t state; // of each sequence state_bytes, of which (HEADS, 4 * KEY_VECTORS, KEY_VECTORS) from state_offset on
    Runs runs; // (tokens)
    Uints positions; // (tokens)
    Vec4s y;
    uint state_bytes;
    uint state_offset;
    uint num_rows;
} p;

const uint GROUPS = WORKGROUP / TILE; // lanes with the same columns
const uint ROWS = CHUNK / GROUPS;
const uint KEYS = (KEY_VECTORS + GROUPS - 1) / GROUPS;
const uint COLUMNS = HEADS * KEY_VECTORS;
const uint LEFT_VECTORS = 2 * KEY_VECTORS + CHUNK / 2;
const uint FACTORS = CHUNK * CHUNK / 4 / WORKGROUP; // vec4s of Y that a lane brings in, and of Z
const uint STRIDE = CHUNK / 4 + 1; // of a row of factors: neighbours begin in other banks

shared vec4 values[CHUNK * TILE]; // (CHUNK, TILE): V
shared vec4 taken[CHUNK * TILE]; // (CHUNK, TILE): U
shared vec4 y_factors[CHUNK * STRIDE], z_factors[CHUNK * STRIDE]; // (CHUNK, STRIDE): Y, Z

#include "include/long_chunks.glsl"
#include "include/state_tile.glsl"
#include "include/chunk_steps.glsl"

// Of the chunk that comes next: the first of its rows of X and R, and all else that is read of it.
vec4 next_x[ROWS * AHEAD], next_r[ROWS * AHEAD];
vec4 next_values[ROWS], next_y[FACTORS], next_z[FACTORS];
// Of this one, as arrays whose sizes are no constants of the language can't be passed: what the state and other tokens have for the
// lane's tokens, and keys of tokens that are added to the state, and what these take.
vec4 by_directions[ROWS], by_r[ROWS], first_k[AHEAD * KEYS], first_b[AHEAD * KEYS];

Vec4s row_of(Vec4s rows, uint row) {
    return rows + uint64_t(row) * COLUMNS + head * KEY_VECTORS;
}

Vec4s chunk_of(uint row) {
    return p.chunks + (uint64_t(row) * HEADS + head) * LEFT_VECTORS;
}

// Past the end of a head's values the last ones are computed again.
uint value_at() {
    return min(tile + column, VALUE_VECTORS - 1);
}

// Past a chunk's end its last token is read again, and past the end of keys the last of them.
#define FETCH_ROWS(x4, r4, row, num_tokens, first)                                          \
    [[unroll]] for (uint n = 0; n < ROWS; ++n) {                                            \
        uint at = row + min(ROWS * group + n, num_tokens - 1);                              \
        Vec4s x = row_of(p.x, at) + min(first, KEY_VECTORS - AHEAD);                        \
        Vec4s r = chunk_of(at) + min(first, KEY_VECTORS - AHEAD);                           \
        [[unroll]] for (uint u = 0; u < AHEAD; ++u) {                                       \
            x4[n * AHEAD + u] = (x + u).v;                                                  \
            r4[n * AHEAD + u] = (r + u).v;                                                  \
        }                                                                                   \
    }

void fetch_chunk(uint row, uint num_tokens) {
    FETCH_ROWS(next_x, next_r, row, num_tokens, 0)
    [[unroll]] for (uint n = 0; n < ROWS; ++n)
        next_values[n] = (row_of(p.v, row + min(ROWS * group + n, num_tokens - 1)) + value_at()).v;
    [[unroll]] for (uint f = 0; f < FACTORS; ++f) {
        uint i = lane + f * WORKGROUP;
        Vec4s own = chunk_of(row + min(i / (CHUNK / 4), num_tokens - 1)) + (2 * KEY_VECTORS + i % (CHUNK / 4));
        next_y[f] = own.v;
        next_z[f] = (own + CHUNK / 4).v;
    }
}

#define ADD_ROWS(x4, r4, first)                                                             \
    [[unroll]] for (uint c = 0; c < 4 * AHEAD; ++c) {                                       \
        vec4 row = s[(4 * (first) + c) * TILE + column];                                    \
        [[unroll]] for (uint n = 0; n < ROWS; ++n) {                                        \
            by_directions[n] = fma(vec4(x4[n * AHEAD + c / 4][c % 4]), row, by_directions[n]); \
            by_r[n] = fma(vec4(r4[n * AHEAD + c / 4][c % 4]), row, by_r[n]);                \
        }                                                                                   \
    }

// What the state has for the rows of X and R of a lane's tokens.
void find(uint row, uint num_tokens) {
    [[unroll]] for (uint n = 0; n < ROWS; ++n)
        by_directions[n] = by_r[n] = vec4(0);
    [[dont_unroll]] for (uint v = 0; v < KEY_VECTORS; v += 2 * AHEAD) {
        vec4 more_x[ROWS * AHEAD], more_r[ROWS * AHEAD];
        FETCH_ROWS(more_x, more_r, row, num_tokens, v + AHEAD)
        ADD_ROWS(next_x, next_r, v)
        FETCH_ROWS(next_x, next_r, row, num_tokens, v + 2 * AHEAD)
        if (KEY_VECTORS % (2 * AHEAD) == 0 || v + AHEAD < KEY_VECTORS)
            ADD_ROWS(more_x, more_r, v + AHEAD)
    }
}

// What the tokens find of the values of tokens up to them, by their rows of Y and Z.
void add_values() {
    [[dont_unroll]] for (uint v = 0; v <= (ROWS * group + ROWS - 1) / 4; ++v) {
        vec4 y4[ROWS], z4[ROWS];
        [[unroll]] for (uint n = 0; n < ROWS; ++n) {
            y4[n] = y_factors[(ROWS * group + n) * STRIDE + v];
            z4[n] = z_factors[(ROWS * group + n) * STRIDE + v];
        }
        [[unroll]] for (uint c = 0; c < 4; ++c) {
            vec4 value = values[(4 * v + c) * TILE + column];
            [[unroll]] for (uint n = 0; n < ROWS; ++n) {
                by_directions[n] = fma(vec4(y4[n][c]), value, by_directions[n]);
                by_r[n] = fma(vec4(z4[n][c]), value, by_r[n]);
            }
        }
    }
}

// Behind the last token V and U are nothing, and its keys are read again.
#define FETCH_KEYS(k4, b4, row, first, num_tokens)                                          \
    [[unroll]] for (uint i = 0; i < AHEAD; ++i) {                                           \
        uint at = row + min(first + i, num_tokens - 1);                                     \
        Vec4s k = chunk_of(at) + KEY_VECTORS, b = row_of(p.b, at);                          \
        [[unroll]] for (uint m = 0; m < KEYS; ++m) {                                        \
            k4[i * KEYS + m] = (k + min(group + m * GROUPS, KEY_VECTORS - 1)).v;            \
            b4[i * KEYS + m] = (b + min(group + m * GROUPS, KEY_VECTORS - 1)).v;            \
        }                                                                                   \
    }

#define ADD_KEYS(k4, b4, first)                                                             \
    [[unroll]] for (uint i = 0; i < AHEAD; ++i) {                                           \
        vec4 value = values[((first) + i) * TILE + column], found = taken[((first) + i) * TILE + column]; \
        [[unroll]] for (uint m = 0; m < KEYS; ++m)                                          \
            [[unroll]] for (uint c = 0; c < 4; ++c)                                         \
                added[m * 4 + c] =                                                          \
                    fma(vec4(-b4[i * KEYS + m][c]), found, fma(vec4(k4[i * KEYS + m][c]), value, added[m * 4 + c])); \
    }

// Adds what tokens leave to the state, and takes out what they find in it.
void add_keys(uint row, uint num_tokens) {
    vec4 added[KEYS * 4], decays[KEYS];
    [[unroll]] for (uint m = 0; m < KEYS; ++m) {
        uint at = min(group + m * GROUPS, KEY_VECTORS - 1);
        decays[m] = (row_of(p.w, row + num_tokens - 1) + at).v;
        [[unroll]] for (uint c = 0; c < 4; ++c)
            added[m * 4 + c] = s[(4 * at + c) * TILE + column];
    }
    [[dont_unroll]] for (uint first = 0; first < num_tokens; first += 2 * AHEAD) {
        vec4 more_k[AHEAD * KEYS], more_b[AHEAD * KEYS];
        FETCH_KEYS(more_k, more_b, row, first + AHEAD, num_tokens)
        ADD_KEYS(first_k, first_b, first)
        FETCH_KEYS(first_k, first_b, row, first + 2 * AHEAD, num_tokens)
        ADD_KEYS(more_k, more_b, first + AHEAD)
    }
    [[unroll]] for (uint m = 0; m < KEYS; ++m)
        if (group + m * GROUPS < KEY_VECTORS)
            [[unroll]] for (uint c = 0; c < 4; ++c)
                s[(4 * (group + m * GROUPS) + c) * TILE + column] = decays[m][c] * added[m * 4 + c];
}

void step_chunk(uint row, uint num_tokens, bool is_last, uint which, out uint next_tokens) {
    uint offset = next_offset(row, is_last);
    [[unroll]] for (uint n = 0; n < ROWS; ++n) { // past the chunk's end factors are zero, and no NaN may meet them
        uint token = ROWS * group + n;
        values[token * TILE + column] = token < num_tokens ? next_values[n] : vec4(0);
    }
    [[unroll]] for (uint f = 0; f < FACTORS; ++f) {
        uint i = lane + f * WORKGROUP, at = i / (CHUNK / 4) * STRIDE + i % (CHUNK / 4);
        y_factors[at] = next_y[f];
        z_factors[at] = next_z[f];
    }
    find_end(offset, which);
    find(row, num_tokens);
    barrier();
    next_tokens = is_last ? 0 : ends[which ^ 1];
    FETCH_KEYS(first_k, first_b, row, 0, num_tokens)
    fetch_next(row, num_tokens, is_last, next_tokens);
    add_values();
    [[unroll]] for (uint n = 0; n < ROWS; ++n) {
        uint token = ROWS * group + n;
        taken[token * TILE + column] = token < num_tokens ? by_directions[n] : vec4(0);
        if (token < num_tokens && tile + column < VALUE_VECTORS)
            (row_of(p.y, row + token) + value_at()).v = by_r[n];
    }
    barrier();
    end_was_found(which);
    add_keys(row, num_tokens);
    barrier();
}

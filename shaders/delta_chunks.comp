#version 460
// The gated delta rule in chunks, the part with the state: chunk after chunk of a sequence, by what delta_chunk made of each, where
// the formulas are. A workgroup owns TILE columns of one head's S (along x), in shared memory, for the long run of tokens that
// begins in SHORTEST rows (along y). A lane has four columns of ROWS tokens, then of every GROUPS-th vec4 of keys. Chunks wait for
// each other, so what the next one reads from memory is under way while this one is computed. What is kept before a run's end is
// the state behind a chunk.
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
const uint UNROLLED = 4; // vec4s of a head of keys, which has a multiple of so many
const uint KEYS = (KEY_VECTORS + GROUPS - 1) / GROUPS;
const uint TOGETHER = 4; // tokens whose keys are under way
const uint FACTORS = CHUNK * CHUNK / 4 / WORKGROUP; // vec4s of T that a lane brings in, and of P
const uint STRIDE = CHUNK / 4 + 1; // of a row of factors: neighbours begin in other banks

shared vec4 tokens[CHUNK * TILE]; // (CHUNK, TILE): V - diag(d) K S, then U
shared vec4 factors[CHUNK * STRIDE]; // (CHUNK, STRIDE): T, then P
shared vec2 decays[CHUNK]; // d and w
shared uint ends[2]; // tokens up to the run's end, if it is among those of every second chunk

#include "include/long_chunks.glsl"
#include "include/state_tile.glsl"

// Of the chunk that comes next: where its queries are, of which the first are here with their keys, and all else that is read of it.
uint64_t queries[ROWS];
vec4 next_queries[ROWS * UNROLLED], next_keys[ROWS * UNROLLED];
vec4 next_values[ROWS], next_t[FACTORS], next_p[FACTORS];
vec2 next_decays[ROWS];
// Of this one, as arrays whose sizes are no constants of the language can't be passed: what the state and other tokens have for the
// lane's tokens, and keys of tokens that are added to the state.
vec4 sums[ROWS], found[ROWS], k4[TOGETHER * KEYS];

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

void fetch_rows() {
    [[unroll]] for (uint r = 0; r < ROWS; ++r) {
        Vec4s q = Vec4s(queries[r]);
        [[unroll]] for (uint u = 0; u < UNROLLED; ++u) {
            next_queries[r * UNROLLED + u] = (q + u).v;
            next_keys[r * UNROLLED + u] = (q + (KEY_HEADS * KEY_VECTORS + u)).v;
        }
    }
}

// Past a chunk's end its last token is read again.
void fetch_chunk(uint row, uint num_tokens) {
    [[unroll]] for (uint r = 0; r < ROWS; ++r)
        queries[r] = uint64_t(queries_of(row + min(ROWS * group + r, num_tokens - 1)));
    fetch_rows();
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

// What the state has for the keys and the queries of a lane's tokens, into `sums` and `found`.
void find() {
    [[unroll]] for (uint r = 0; r < ROWS; ++r)
        sums[r] = found[r] = vec4(0);
    [[dont_unroll]] for (uint v = 0; v < KEY_VECTORS; v += UNROLLED) {
        vec4 own_keys[ROWS * UNROLLED], own_queries[ROWS * UNROLLED];
        [[unroll]] for (uint i = 0; i < ROWS * UNROLLED; ++i) {
            own_keys[i] = next_keys[i];
            own_queries[i] = next_queries[i];
        }
        if (v + UNROLLED < KEY_VECTORS) {
            [[unroll]] for (uint r = 0; r < ROWS; ++r)
                queries[r] += 16 * UNROLLED;
            fetch_rows();
        }
        [[unroll]] for (uint c = 0; c < 4 * UNROLLED; ++c) {
            vec4 row = s[(4 * v + c) * TILE + column];
            [[unroll]] for (uint r = 0; r < ROWS; ++r) {
                sums[r] = fma(vec4(own_keys[r * UNROLLED + c / 4][c % 4]), row, sums[r]);
                found[r] = fma(vec4(own_queries[r * UNROLLED + c / 4][c % 4]), row, found[r]);
            }
        }
    }
}

// The sum over tokens up to the lane's last of a factor and what the token has in shared memory.
#define ADD_TOKENS(sums)                                                                    \
    [[dont_unroll]] for (uint v = 0; v <= (ROWS * group + ROWS - 1) / 4; ++v) {             \
        vec4 f[ROWS];                                                                       \
        [[unroll]] for (uint r = 0; r < ROWS; ++r)                                          \
            f[r] = factors[(ROWS * group + r) * STRIDE + v];                                \
        [[unroll]] for (uint c = 0; c < 4; ++c) {                                           \
            vec4 row = tokens[(4 * v + c) * TILE + column];                                 \
            [[unroll]] for (uint r = 0; r < ROWS; ++r)                                      \
                sums[r] = fma(vec4(f[r][c]), row, sums[r]);                                 \
        }                                                                                   \
    }

// Behind the last token U is nothing, and its keys are read again.
#define FETCH_KEYS(into, row, first, num_tokens)                                            \
    [[unroll]] for (uint i = 0; i < TOGETHER; ++i) {                                        \
        Vec4s k = keys_of(row + min(first + i, num_tokens - 1));                            \
        [[unroll]] for (uint m = 0; m < KEYS; ++m)                                          \
            into[i * KEYS + m] = (k + min(group + m * GROUPS, KEY_VECTORS - 1)).v;          \
    }

// Adds what tokens leave to the state; the keys of the first ones are here.
void add_keys(uint row, uint num_tokens) {
    vec4 added[KEYS * 4];
    float decay = decays[num_tokens - 1].x;
    [[unroll]] for (uint m = 0; m < KEYS; ++m)
        [[unroll]] for (uint c = 0; c < 4; ++c)
            added[m * 4 + c] = decay * s[(4 * min(group + m * GROUPS, KEY_VECTORS - 1) + c) * TILE + column];
    [[dont_unroll]] for (uint first = 0; first < num_tokens; first += TOGETHER) {
        vec4 more[TOGETHER * KEYS];
        FETCH_KEYS(more, row, first + TOGETHER, num_tokens)
        [[unroll]] for (uint i = 0; i < TOGETHER; ++i) {
            vec4 u = decays[first + i].y * tokens[(first + i) * TILE + column];
            [[unroll]] for (uint m = 0; m < KEYS; ++m) {
                [[unroll]] for (uint c = 0; c < 4; ++c)
                    added[m * 4 + c] = fma(vec4(k4[i * KEYS + m][c]), u, added[m * 4 + c]);
                k4[i * KEYS + m] = more[i * KEYS + m];
            }
        }
    }
    [[unroll]] for (uint m = 0; m < KEYS; ++m)
        if (group + m * GROUPS < KEY_VECTORS)
            [[unroll]] for (uint c = 0; c < 4; ++c)
                s[(4 * (group + m * GROUPS) + c) * TILE + column] = added[m * 4 + c];
}

// Of the chunk behind this one, from its lanes' runs: found by the next barrier.
void find_end(uint offset, uint which) {
    if (lane < CHUNK && (offset & LAST_OF_RUN) != 0)
        atomicMin(ends[which], lane + 1);
}

// Takes the chunk that was fetched, and fetches the next one, of which it finds how many tokens it has.
void step_chunk(uint row, uint num_tokens, bool is_last, uint which, out uint next_tokens) {
    uint after = row + CHUNK + lane, offset = 0;
    if (!is_last && lane < CHUNK && after < p.num_rows)
        offset = (p.runs + after).v.offset;
    find();
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
    find_end(offset, which ^ 1);
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
    if (lane == 0)
        ends[which] = CHUNK + 1;
    FETCH_KEYS(k4, row, 0, num_tokens)
    if (!is_last)
        fetch_chunk(row + CHUNK, min(next_tokens, CHUNK));
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

void main() {
    uint begin = gl_WorkGroupID.y * SHORTEST, runs = chunks_from(begin, true);
    if (runs == 0)
        return;
    uint row = begin + findLSB(runs); // the only one: it is as long as these rows
    Run run = (p.runs + row).v;
    bool is_last;
    uint num_tokens = chunk_tokens(row, is_last);
    fetch_chunk(row, num_tokens);
    load_state(run.source, (p.positions + row).v == 0);
    if (lane < 2)
        ends[lane] = CHUNK + 1;
    barrier();
    for (uint which = 0;; which ^= 1) {
        uint kept = (p.runs + row + num_tokens - 1).v.kept, next_tokens;
        step_chunk(row, num_tokens, is_last, which, next_tokens);
        if (kept != NO_STATE)
            store_state(kept);
        if (is_last)
            break;
        row += CHUNK;
        is_last = next_tokens <= CHUNK;
        num_tokens = min(next_tokens, CHUNK);
    }
    store_state(run.state_index);
}

#version 460
// The gated delta rule in chunks, the part with the state: chunk after chunk of a sequence, by what delta_chunk made of each, where
// the formulas are. A workgroup owns TILE columns of one head's S (along x), in shared memory, for the long run of tokens that
// begins in SHORTEST rows (along y). A lane has four columns of two tokens, then of every 16th vec4 of keys. What is kept before a
// run's end is the state behind a chunk.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128; // what a lane has is made for so many
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY_VECTORS = 32;
layout(constant_id = 2) const uint KEY_HEADS = 1;
layout(constant_id = 3) const uint VALUE_HEADS = 1;
layout(constant_id = 4) const uint VALUE_VECTORS = 32;
layout(constant_id = 5) const bool TILED = false; // as in delta_rule
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

const uint TILE = 8; // vec4s of a head of values
const uint GROUPS = 16; // lanes with the same columns
const uint UNROLLED = 4; // vec4s of a head of keys, which has a multiple of so many
const uint KEYS = (KEY_VECTORS + GROUPS - 1) / GROUPS;
const bool WHOLE = KEY_VECTORS % GROUPS == 0; // no lane has a vec4 of keys too many

shared vec4 rest[CHUNK * TILE]; // (CHUNK, TILE): V - diag(d) K S
shared vec4 left[CHUNK * TILE]; // (CHUNK, TILE): U
shared vec4 decayed[CHUNK * TILE]; // (CHUNK, TILE): diag(w) U

#include "include/long_chunks.glsl"
#include "include/state_tile.glsl"

Vec4s queries_of(uint row) {
    return p.qkv + uint64_t(row) * p.row_columns + key_head_of(head) * KEY_VECTORS;
}

Vec4s keys_of(uint row) {
    return queries_of(row) + KEY_HEADS * KEY_VECTORS;
}

Vec4s chunk_of(uint row) {
    return p.chunks + (uint64_t(row) * VALUE_HEADS + head) * CHUNK_VECTORS;
}

// What the state has for the keys and the queries of two tokens.
void find(uint rows[2], out vec4 by_keys[2], out vec4 by_queries[2]) {
    Vec4s q[2] = Vec4s[2](queries_of(rows[0]), queries_of(rows[1]));
    [[unroll]] for (uint r = 0; r < 2; ++r)
        by_keys[r] = by_queries[r] = vec4(0);
    Vec4s k[2] = Vec4s[2](keys_of(rows[0]), keys_of(rows[1]));
    [[dont_unroll]] for (uint v = 0; v < KEY_VECTORS; v += UNROLLED) {
        vec4 k4[2][UNROLLED], q4[2][UNROLLED];
        [[unroll]] for (uint r = 0; r < 2; ++r) {
            [[unroll]] for (uint u = 0; u < UNROLLED; ++u) {
                q4[r][u] = (q[r] + u).v;
                k4[r][u] = (k[r] + u).v;
            }
            q[r] = q[r] + UNROLLED;
            k[r] = k[r] + UNROLLED;
        }
        [[unroll]] for (uint c = 0; c < 4 * UNROLLED; ++c) {
            vec4 row = s[(4 * v + c) * TILE + column];
            [[unroll]] for (uint r = 0; r < 2; ++r) {
                by_keys[r] = fma(vec4(k4[r][c / 4][c % 4]), row, by_keys[r]);
                by_queries[r] = fma(vec4(q4[r][c / 4][c % 4]), row, by_queries[r]);
            }
        }
    }
}

// The sum over tokens up to the lane's second of a factor and what the token has in shared memory.
#define ADD_TOKENS(sums, factors, tokens)                                                   \
    [[dont_unroll]] for (uint v = 0; v <= group / 2; ++v) {                                 \
        vec4 f[2] = vec4[2]((factors[0] + v).v, (factors[1] + v).v);                        \
        [[unroll]] for (uint c = 0; c < 4; ++c) {                                           \
            vec4 row = tokens[(4 * v + c) * TILE + column];                                 \
            [[unroll]] for (uint r = 0; r < 2; ++r)                                         \
                sums[r] = fma(vec4(f[r][c]), row, sums[r]);                                 \
        }                                                                                   \
    }

void add_keys(uint row, uint num_tokens, float decay) {
    vec4 sums[KEYS][4];
    [[unroll]] for (uint m = 0; m < KEYS; ++m)
        [[unroll]] for (uint c = 0; c < 4; ++c)
            sums[m][c] = decay * s[(4 * min(group + m * GROUPS, KEY_VECTORS - 1) + c) * TILE + column];
    uint first = min(group, KEY_VECTORS - 1);
    Vec4s k = keys_of(row) + first;
    [[dont_unroll]] for (uint i = 0; i < num_tokens; i += 2, k = k + 2 * p.row_columns) {
        Vec4s both[2] = Vec4s[2](k, k + (i + 1 < num_tokens ? p.row_columns : 0)); // behind the last one U is nothing
        [[unroll]] for (uint r = 0; r < 2; ++r) {
            vec4 u = decayed[(i + r) * TILE + column];
            [[unroll]] for (uint m = 0; m < KEYS; ++m) {
                vec4 k4 = (both[r] + (WHOLE ? m * GROUPS : min(first + m * GROUPS, KEY_VECTORS - 1) - first)).v;
                [[unroll]] for (uint c = 0; c < 4; ++c)
                    sums[m][c] = fma(vec4(k4[c]), u, sums[m][c]);
            }
        }
    }
    [[unroll]] for (uint m = 0; m < KEYS; ++m)
        if (group + m * GROUPS < KEY_VECTORS)
            [[unroll]] for (uint c = 0; c < 4; ++c)
                s[(4 * (group + m * GROUPS) + c) * TILE + column] = sums[m][c];
}

void step_chunk(uint row, uint num_tokens) {
    uint tokens[2] = uint[2](2 * group, 2 * group + 1);
    uint rows[2] = uint[2](row + min(tokens[0], num_tokens - 1), row + min(tokens[1], num_tokens - 1));
    uint at = min(tile + column, VALUE_VECTORS - 1); // past the end the last one is computed again
    vec4 by_keys[2], found[2];
    vec2 decays[2];
    find(rows, by_keys, found);
    Vec4s factors[2], more[2];
    [[unroll]] for (uint r = 0; r < 2; ++r) {
        factors[r] = chunk_of(rows[r]);
        more[r] = factors[r] + CHUNK / 4;
        decays[r] = (factors[r] + CHUNK / 2).v.xy;
        vec4 value = (p.qkv + uint64_t(rows[r]) * p.row_columns + 2 * KEY_HEADS * KEY_VECTORS + head * VALUE_VECTORS + at).v;
        bool has_token = tokens[r] < num_tokens;
        rest[tokens[r] * TILE + column] = has_token ? value - decays[r].x * by_keys[r] : vec4(0);
        found[r] *= decays[r].x;
    }
    barrier();
    vec4 u[2] = vec4[2](vec4(0), vec4(0));
    ADD_TOKENS(u, factors, rest)
    [[unroll]] for (uint r = 0; r < 2; ++r) {
        u[r] = tokens[r] < num_tokens ? u[r] : vec4(0);
        left[tokens[r] * TILE + column] = u[r];
        decayed[tokens[r] * TILE + column] = decays[r].y * u[r];
    }
    barrier();
    ADD_TOKENS(found, more, left)
    [[unroll]] for (uint r = 0; r < 2; ++r)
        if (tokens[r] < num_tokens && tile + column < VALUE_VECTORS)
            (p.y + (uint64_t(rows[r]) * VALUE_HEADS + head) * VALUE_VECTORS + at).v = found[r];
    add_keys(row, num_tokens, (chunk_of(row + num_tokens - 1) + CHUNK / 2).v.x);
    barrier();
}

void main() {
    uint begin = gl_WorkGroupID.y * SHORTEST, runs = chunks_from(begin, true);
    if (runs == 0)
        return;
    uint row = begin + findLSB(runs); // the only one: it is as long as these rows
    Run run = (p.runs + row).v;
    load_state(run.source, (p.positions + row).v == 0);
    barrier();
    bool is_last = false;
    for (; !is_last; row += CHUNK) {
        uint num_tokens = chunk_tokens(row, is_last);
        step_chunk(row, num_tokens);
        uint kept = (p.runs + row + num_tokens - 1).v.kept;
        if (kept != NO_STATE)
            store_state(kept);
    }
    store_state(run.state_index);
}

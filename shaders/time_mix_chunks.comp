#version 460
// RWKV-7's recurrence in chunks, the part with the state: chunk after chunk of a sequence, by what time_mix_chunk made of each, where
// the formulas are. A workgroup owns TILE columns of one head's S (along x), in shared memory, for the long run of tokens that
// begins in SHORTEST rows (along y). A lane has four columns of two tokens, then of every 16th vec4 of keys. What is kept before a
// run's end is the state behind a chunk.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"
#include "include/long_run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128; // what a lane has is made for so many
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY_VECTORS = 16;
layout(constant_id = 2) const uint HEADS = 1;
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

const uint TILE = 8; // vec4s of a head of values
const uint GROUPS = 16; // lanes with the same columns
const uint UNROLLED = 4; // vec4s of a head of keys, which has a multiple of so many
const uint KEYS = (KEY_VECTORS + GROUPS - 1) / GROUPS;
const uint COLUMNS = HEADS * KEY_VECTORS;
const uint LEFT_VECTORS = 2 * KEY_VECTORS + CHUNK / 2;

shared vec4 values[CHUNK * TILE]; // (CHUNK, TILE): V
shared vec4 taken[CHUNK * TILE]; // (CHUNK, TILE): U

#include "include/long_chunks.glsl"
#include "include/state_tile.glsl"

Vec4s row_of(Vec4s rows, uint row) {
    return rows + uint64_t(row) * COLUMNS + head * KEY_VECTORS;
}

Vec4s chunk_of(uint row) {
    return p.chunks + (uint64_t(row) * HEADS + head) * LEFT_VECTORS;
}

// What the state has for the rows of X and R of two tokens.
void find(uint rows[2], out vec4 by_directions[2], out vec4 by_r[2]) {
    Vec4s x[2] = Vec4s[2](row_of(p.x, rows[0]), row_of(p.x, rows[1]));
    Vec4s r[2] = Vec4s[2](chunk_of(rows[0]), chunk_of(rows[1]));
    [[unroll]] for (uint n = 0; n < 2; ++n)
        by_directions[n] = by_r[n] = vec4(0);
    [[dont_unroll]] for (uint v = 0; v < KEY_VECTORS; v += UNROLLED) {
        vec4 x4[2][UNROLLED], r4[2][UNROLLED];
        [[unroll]] for (uint n = 0; n < 2; ++n) {
            [[unroll]] for (uint u = 0; u < UNROLLED; ++u) {
                x4[n][u] = (x[n] + u).v;
                r4[n][u] = (r[n] + u).v;
            }
            x[n] = x[n] + UNROLLED;
            r[n] = r[n] + UNROLLED;
        }
        [[unroll]] for (uint c = 0; c < 4 * UNROLLED; ++c) {
            vec4 row = s[(4 * v + c) * TILE + column];
            [[unroll]] for (uint n = 0; n < 2; ++n) {
                by_directions[n] = fma(vec4(x4[n][c / 4][c % 4]), row, by_directions[n]);
                by_r[n] = fma(vec4(r4[n][c / 4][c % 4]), row, by_r[n]);
            }
        }
    }
}

// What two tokens find of the values of tokens up to them, by their rows of Y and Z.
void add_values(uint rows[2], inout vec4 by_directions[2], inout vec4 by_r[2]) {
    Vec4s y[2] = Vec4s[2](chunk_of(rows[0]) + 2 * KEY_VECTORS, chunk_of(rows[1]) + 2 * KEY_VECTORS);
    [[dont_unroll]] for (uint v = 0; v <= group / 2; ++v) {
        vec4 y4[2] = vec4[2]((y[0] + v).v, (y[1] + v).v);
        vec4 z4[2] = vec4[2]((y[0] + CHUNK / 4 + v).v, (y[1] + CHUNK / 4 + v).v);
        [[unroll]] for (uint c = 0; c < 4; ++c) {
            vec4 value = values[(4 * v + c) * TILE + column];
            [[unroll]] for (uint n = 0; n < 2; ++n) {
                by_directions[n] = fma(vec4(y4[n][c]), value, by_directions[n]);
                by_r[n] = fma(vec4(z4[n][c]), value, by_r[n]);
            }
        }
    }
}

void add_keys(uint row, uint num_tokens) {
    uint at[KEYS];
    vec4 sums[KEYS][4];
    [[unroll]] for (uint m = 0; m < KEYS; ++m) {
        at[m] = min(group + m * GROUPS, KEY_VECTORS - 1);
        [[unroll]] for (uint c = 0; c < 4; ++c)
            sums[m][c] = s[(4 * at[m] + c) * TILE + column];
    }
    Vec4s k = chunk_of(row) + KEY_VECTORS, b = row_of(p.b, row);
    [[dont_unroll]] for (uint i = 0; i < num_tokens; ++i, k = k + HEADS * LEFT_VECTORS, b = b + COLUMNS) {
        vec4 value = values[i * TILE + column], found = taken[i * TILE + column];
        [[unroll]] for (uint m = 0; m < KEYS; ++m) {
            vec4 k4 = (k + at[m]).v, b4 = (b + at[m]).v;
            [[unroll]] for (uint c = 0; c < 4; ++c)
                sums[m][c] = fma(vec4(-b4[c]), found, fma(vec4(k4[c]), value, sums[m][c]));
        }
    }
    Vec4s decays = row_of(p.w, row + num_tokens - 1);
    [[unroll]] for (uint m = 0; m < KEYS; ++m) {
        vec4 decay = (decays + at[m]).v;
        if (group + m * GROUPS < KEY_VECTORS)
            [[unroll]] for (uint c = 0; c < 4; ++c)
                s[(4 * at[m] + c) * TILE + column] = decay[c] * sums[m][c];
    }
}

void step_chunk(uint row, uint num_tokens) {
    uint tokens[2] = uint[2](2 * group, 2 * group + 1);
    uint rows[2] = uint[2](row + min(tokens[0], num_tokens - 1), row + min(tokens[1], num_tokens - 1));
    uint at = min(tile + column, VALUE_VECTORS - 1); // past the end the last one is computed again
    [[unroll]] for (uint n = 0; n < 2; ++n) // past the chunk's end factors are zero, and no NaN may meet them
        values[tokens[n] * TILE + column] = tokens[n] < num_tokens ? (row_of(p.v, rows[n]) + at).v : vec4(0);
    barrier();
    vec4 by_directions[2], by_r[2];
    find(rows, by_directions, by_r);
    add_values(rows, by_directions, by_r);
    [[unroll]] for (uint n = 0; n < 2; ++n) {
        taken[tokens[n] * TILE + column] = by_directions[n];
        if (tokens[n] < num_tokens && tile + column < VALUE_VECTORS)
            (row_of(p.y, rows[n]) + at).v = by_r[n];
    }
    barrier();
    add_keys(row, num_tokens);
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

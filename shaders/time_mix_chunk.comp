#version 460
// RWKV-7's recurrence in chunks, the part that no state goes into. What a chunk's tokens find by their directions, U, what they
// find by r, O, and the state behind them are
//   U = X S + Y V, O = R S + Z V, S = diag(D) (S + K^T V - B^T U),
// where D_t is the product of decays up to token t (of the last one in D), K_t = k_t / D_t, B_t = b_t / D_t, and with A[t, i] =
// D_(t-1) direction_t B_i below the diagonal, P[t, i] = D_t r_t B_i on and below it, and A', P' the same of K:
//   X = (1 + A)^-1 D_(t-1) direction_t, Y = (1 + A)^-1 A', R = D_t r_t - P X, Z = P' - P Y.
// A decay is exp(-exp(-1 / 2)) at least, so D is 3e-9 at least: what is divided by it stays far within f32, with all its digits.
// A workgroup owns one head (along x) of the chunks that begin in SHORTEST rows (along y). A lane has two rows' products with four
// tokens, then a column of X and R, or of Y and Z.
// Source: Parallelizing Linear Transformers with the Delta Rule over Sequence Length (arXiv 2406.06484), section 3.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"
#include "include/long_run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128; // what a lane has is made for so many
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY_VECTORS = 16;
layout(constant_id = 2) const uint HEADS = 1;

layout(push_constant, scalar) uniform P {
    Vec4s r; // (tokens, HEADS, KEY_VECTORS), as all others
    Vec4s w; // decays; D in a chunk's last row
    Vec4s k;
    Vec4s direction; // then X
    Vec4s b; // then B
    Runs runs; // (tokens)
    Vec4s chunks; // (tokens, HEADS, 2 * KEY_VECTORS + CHUNK / 2): a row of R, one of K, one of Y, one of Z
    uint num_rows;
} p;

const uint DIM = 4 * KEY_VECTORS;
const uint SLICE = 8; // vec4s of a head at a time
const uint STRIDE = SLICE + 1; // neighbouring rows in other banks
const uint PARTS = 4; // of a chunk's tokens, whose decays are multiplied beside each other
const uint PART = CHUNK / PARTS;
const uint STAGED = CHUNK * STRIDE; // of one of four
const uint FACTORS = CHUNK * CHUNK / 4; // of one of four
const uint A = 0, A_K = FACTORS, P_B = 2 * FACTORS, P_K = 3 * FACTORS;
const uint DECAYS = 4 * STAGED, FOUND = 4 * FACTORS; // where they begin
const uint USED = FOUND + (CHUNK - PART) * WORKGROUP / 4; // which is more than decays need
const uint COLUMNS = HEADS * KEY_VECTORS;
const uint LEFT_VECTORS = 2 * KEY_VECTORS + CHUNK / 2;

// (4, CHUNK, STRIDE): directions, r, K, B, and (CHUNK, SLICE): D_t. Then (4, CHUNK, CHUNK / 4): factors, and (CHUNK - PART, WORKGROUP
// floats): what lanes have found of X or Y.
shared vec4 used[USED];
shared float part_decays[PARTS * 4 * SLICE];

#include "include/long_chunks.glsl"

uint lane = gl_LocalInvocationID.x;
uint head = gl_WorkGroupID.x;

// One element of a head's row.
Floats element(Vec4s rows, uint row, uint at) {
    return Floats(uint64_t(rows + uint64_t(row) * COLUMNS + head * KEY_VECTORS)) + at;
}

void multiply_decays(uint row, uint num_tokens, uint base, uint width) {
    uint at = lane % (4 * SLICE), part = lane / (4 * SLICE);
    float products[PART];
    float product = 1;
    [[unroll]] for (uint n = 0; n < PART; ++n) {
        uint token = part * PART + n;
        float decay = element(p.w, row + min(token, num_tokens - 1), 4 * base + min(at, 4 * width - 1)).v;
        product *= token < num_tokens ? decay : 1;
        products[n] = product;
    }
    part_decays[part * (4 * SLICE) + at] = product;
    barrier();
    float before = 1;
    for (uint other = 0; other < part; ++other)
        before *= part_decays[other * (4 * SLICE) + at];
    [[unroll]] for (uint n = 0; n < PART; ++n)
        used[DECAYS + (part * PART + n) * SLICE + at / 4][at % 4] = before * products[n];
    barrier();
}

void stage(uint row, uint num_tokens, uint base, uint width) {
    for (uint i = lane; i < CHUNK * SLICE; i += WORKGROUP) {
        uint token = i / SLICE, at = i % SLICE;
        vec4 rows[4] = vec4[4](vec4(0), vec4(0), vec4(0), vec4(0));
        if (token < num_tokens && at < width) {
            uint64_t from = uint64_t(row + token) * COLUMNS + head * KEY_VECTORS + base + at;
            vec4 decay = used[DECAYS + i];
            rows[0] = (p.direction + from).v * (token == 0 ? vec4(1) : used[DECAYS + i - SLICE]);
            rows[1] = (p.r + from).v * decay;
            rows[2] = (p.k + from).v / decay;
            rows[3] = (p.b + from).v / decay;
            (p.b + from).v = rows[3];
            (p.chunks + (uint64_t(row + token) * HEADS + head) * LEFT_VECTORS + KEY_VECTORS + base + at).v = rows[2];
        }
        [[unroll]] for (uint n = 0; n < 4; ++n)
            used[n * STAGED + token * STRIDE + at] = rows[n];
    }
    barrier();
}

// Four multiply-adds, where a sum and a dot product are five instructions.
float add_dot(float sum, vec4 a, vec4 b) {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// Factors of tokens 2 * lane / 8 and the next with the tokens lane % 8 + 8 * j.
void multiply(uint row, uint num_tokens) {
    uint column = lane % 8, first = lane / 8 * 2;
    vec4 sums[2][4]; // of two tokens: directions with B and K, r with B and K
    [[unroll]] for (uint r = 0; r < 2; ++r)
        [[unroll]] for (uint n = 0; n < 4; ++n)
            sums[r][n] = vec4(0);
    [[dont_unroll]] for (uint base = 0; base < KEY_VECTORS; base += SLICE) {
        uint width = min(SLICE, KEY_VECTORS - base);
        multiply_decays(row, num_tokens, base, width);
        stage(row, num_tokens, base, width);
        [[dont_unroll]] for (uint v = 0; v < width; ++v) {
            vec4 by[2][2];
            [[unroll]] for (uint r = 0; r < 2; ++r)
                [[unroll]] for (uint n = 0; n < 2; ++n)
                    by[r][n] = used[n * STAGED + (first + r) * STRIDE + v];
            [[unroll]] for (uint j = 0; j < 4; ++j) {
                vec4 key = used[2 * STAGED + (column + 8 * j) * STRIDE + v];
                vec4 b = used[3 * STAGED + (column + 8 * j) * STRIDE + v];
                [[unroll]] for (uint r = 0; r < 2; ++r)
                    [[unroll]] for (uint n = 0; n < 2; ++n) {
                        sums[r][2 * n][j] = add_dot(sums[r][2 * n][j], by[r][n], b);
                        sums[r][2 * n + 1][j] = add_dot(sums[r][2 * n + 1][j], by[r][n], key);
                    }
            }
        }
        barrier();
    }
    [[unroll]] for (uint r = 0; r < 2; ++r)
        [[unroll]] for (uint j = 0; j < 4; ++j) {
            uint t = first + r, i = column + 8 * j;
            [[unroll]] for (uint n = 0; n < 4; ++n)
                used[n * FACTORS + t * (CHUNK / 4) + i / 4][i % 4] = i < t || n >= 2 && i == t ? sums[r][n][j] : 0;
        }
    barrier();
}

// One column of X and R, or of Y and Z, from the first token on: what is found by tokens before is taken out of both.
void solve(uint row, uint num_tokens, uint column) {
    bool is_key = column < DIM;
    uint token = is_key ? 0 : column - DIM;
    float decay = 1;
    [[dont_unroll]] for (uint begin = 0; begin < CHUNK; begin += PART) {
        float x[PART], other[PART];
        [[unroll]] for (uint n = 0; n < PART; ++n) {
            uint t = begin + n;
            if (is_key) {
                uint from = row + min(t, num_tokens - 1);
                x[n] = element(p.direction, from, column).v * decay;
                decay *= t < num_tokens ? element(p.w, from, column).v : 1;
                other[n] = element(p.r, from, column).v * decay;
            } else {
                x[n] = used[A_K + t * (CHUNK / 4) + token / 4][token % 4];
                other[n] = used[P_K + t * (CHUNK / 4) + token / 4][token % 4];
            }
        }
        [[dont_unroll]] for (uint i = 0; i < begin; i += 4) {
            vec4 found;
            [[unroll]] for (uint c = 0; c < 4; ++c)
                found[c] = used[FOUND + (i + c) * (WORKGROUP / 4) + lane / 4][lane % 4];
            [[unroll]] for (uint n = 0; n < PART; ++n) {
                uint at = (begin + n) * (CHUNK / 4) + i / 4;
                x[n] = add_dot(x[n], -used[A + at], found);
                other[n] = add_dot(other[n], -used[P_B + at], found);
            }
        }
        [[unroll]] for (uint n = 0; n < PART; ++n) {
            uint at = (begin + n) * (CHUNK / 4) + begin / 4;
            [[unroll]] for (uint v = 0; v < PART / 4; ++v) {
                vec4 before = used[A + at + v], upto = used[P_B + at + v];
                [[unroll]] for (uint c = 0; c < 4; ++c) {
                    if (4 * v + c < n)
                        x[n] = fma(-before[c], x[4 * v + c], x[n]);
                    if (4 * v + c <= n)
                        other[n] = fma(-upto[c], x[4 * v + c], other[n]);
                }
            }
        }
        [[unroll]] for (uint n = 0; n < PART; ++n) {
            uint t = begin + n;
            if (t < CHUNK - PART)
                used[FOUND + t * (WORKGROUP / 4) + lane / 4][lane % 4] = x[n];
            if (t >= num_tokens)
                continue;
            Floats left = Floats(uint64_t(p.chunks + (uint64_t(row + t) * HEADS + head) * LEFT_VECTORS));
            if (is_key) {
                element(p.direction, row + t, column).v = x[n];
                (left + column).v = other[n];
            } else {
                (left + 2 * DIM + token).v = x[n];
                (left + 2 * DIM + CHUNK + token).v = other[n];
            }
        }
    }
    if (is_key)
        element(p.w, row + num_tokens - 1, column).v = decay;
}

void main() {
    uint begin = gl_WorkGroupID.y * SHORTEST;
    for (uint chunks = chunks_from(begin, false); chunks != 0; chunks &= chunks - 1) {
        uint row = begin + findLSB(chunks);
        bool is_last;
        uint num_tokens = chunk_tokens(row, is_last);
        multiply(row, num_tokens);
        [[dont_unroll]] for (uint column = lane; column < DIM + CHUNK; column += WORKGROUP)
            solve(row, num_tokens, column);
        barrier();
    }
}

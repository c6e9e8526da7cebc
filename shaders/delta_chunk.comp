#version 460
// The gated delta rule in chunks, the part that no state goes into. With what a chunk's tokens leave, U, and what they find, O:
//   U = T (V - diag(d) K S), O = diag(d) Q S + P U, S = d_last S + K^T diag(w) U,
// where D[t, i] is the product of the decays behind token i up to token t, T = (1 + A)^-1 diag(beta) with
// A[t, i] = beta_t D[t, i] k_t k_i below the diagonal, P[t, i] = D[t, i] q_t k_i on and below it, d is the product of all
// decays up to a token, and w that of those behind it. A workgroup owns one head of values (along x) of the chunks that begin in
// SHORTEST rows (along y). A lane has two rows' products with four keys, then one of CHUNK lanes a column of T.
// Source: Gated Delta Networks (arXiv 2412.06464), section 3.3.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128; // what a lane has is made for so many
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY_VECTORS = 32;
layout(constant_id = 2) const uint KEY_HEADS = 1;
layout(constant_id = 3) const uint VALUE_HEADS = 1;
layout(constant_id = 4) const bool TILED = false; // as in delta_rule
layout(constant_id = 5) const bool RATES = false;

#include "include/delta_gates.glsl"
#include "include/long_run.glsl"

layout(push_constant, scalar) uniform P {
    Vec4s qkv; // (tokens, row_columns): queries, keys, values, as delta_conv leaves them
    Floats ba; // (tokens, 2, VALUE_HEADS), as in delta_rule
    Floats decays; // (VALUE_HEADS)
    Floats decay_bias; // (VALUE_HEADS)
    Runs runs; // (tokens)
    Floats chunks; // (tokens, VALUE_HEADS, 4 * CHUNK_VECTORS): a row of T, one of P, then d and w
    uint row_columns; // in vec4s
    uint num_rows;
} p;

const uint SLICE = 8; // vec4s of a head at a time
const uint STRIDE = SLICE + 1; // neighbouring rows in other banks
const float LOWEST = -128; // the exponential of less is nothing

shared vec4 queries[CHUNK * STRIDE]; // (CHUNK, STRIDE)
shared vec4 keys[CHUNK * STRIDE]; // (CHUNK, STRIDE)
shared vec4 a[CHUNK * CHUNK / 4]; // (CHUNK, CHUNK)
shared float gates[CHUNK], betas[CHUNK];
shared vec2 sums[CHUNK]; // of gates up to a token, and what rounding took from that

#include "include/long_chunks.glsl"

uint lane = gl_LocalInvocationID.x;

void sum_gates(uint row, uint num_tokens, uint head) {
    if (lane < CHUNK) {
        Floats ba = p.ba + uint64_t(row + min(lane, num_tokens - 1)) * (2 * VALUE_HEADS) + head;
        betas[lane] = beta_of(ba.v);
        gates[lane] = max(log_decay((p.decays + head).v, (ba + VALUE_HEADS).v + (p.decay_bias + head).v), LOWEST);
    }
    barrier();
    if (lane < CHUNK) { // differences of sums have to be right where a gate among them is larger than all others
        precise float sum = 0, rest = 0;
        for (uint i = 0; i <= lane; ++i) {
            precise float gate = gates[i];
            precise float next = sum + gate;
            precise float part = next - sum;
            rest += (sum - (next - part)) + (gate - part);
            sum = next;
        }
        sums[lane] = vec2(sum, rest);
    }
    barrier();
}

float decay_between(uint from, uint to) {
    vec2 difference = sums[to] - sums[from];
    return exp(difference.x + difference.y);
}

// Four multiply-adds, where a sum and a dot product are five instructions.
float add_dot(float sum, vec4 a, vec4 b) {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// Products of rows 2 * lane / 8 and the next with the keys lane % 8 + 8 * j.
void products(uint row, uint num_tokens, uint head, out vec4 with_keys[2], out vec4 with_queries[2]) {
    uint column = lane % 8, first = lane / 8 * 2;
    [[unroll]] for (uint r = 0; r < 2; ++r)
        with_keys[r] = with_queries[r] = vec4(0);
    [[dont_unroll]] for (uint base = 0; base < KEY_VECTORS; base += SLICE) {
        uint width = min(SLICE, KEY_VECTORS - base);
        for (uint i = lane; i < CHUNK * SLICE; i += WORKGROUP) {
            uint token = min(i / SLICE, num_tokens - 1), at = min(i % SLICE, width - 1);
            Vec4s q = p.qkv + uint64_t(row + token) * p.row_columns + key_head_of(head) * KEY_VECTORS + base + at;
            queries[i / SLICE * STRIDE + i % SLICE] = q.v;
            keys[i / SLICE * STRIDE + i % SLICE] = (q + KEY_HEADS * KEY_VECTORS).v;
        }
        barrier();
        [[dont_unroll]] for (uint v = 0; v < width; ++v) {
            vec4 k[2], q[2];
            [[unroll]] for (uint r = 0; r < 2; ++r) {
                k[r] = keys[(first + r) * STRIDE + v];
                q[r] = queries[(first + r) * STRIDE + v];
            }
            [[unroll]] for (uint j = 0; j < 4; ++j) {
                vec4 other = keys[(column + 8 * j) * STRIDE + v];
                [[unroll]] for (uint r = 0; r < 2; ++r) {
                    with_keys[r][j] = add_dot(with_keys[r][j], k[r], other);
                    with_queries[r][j] = add_dot(with_queries[r][j], q[r], other);
                }
            }
        }
        barrier();
    }
}

// One column of the inverse of 1 + A, from the first row on, and what it is multiplied with.
void solve(Floats rows, uint num_tokens) {
    float x[CHUNK];
    float beta = betas[lane];
    [[unroll]] for (uint t = 0; t < CHUNK; ++t) {
        float sum = t == lane ? 1 : 0;
        [[unroll]] for (uint v = 0; v < CHUNK / 4; ++v) // constant bounds: compilers unroll no others around this
            if (4 * v < t) {
                vec4 factors = a[t * (CHUNK / 4) + v];
                [[unroll]] for (uint c = 0; c < 4; ++c)
                    if (4 * v + c < t)
                        sum = fma(-factors[c], x[4 * v + c], sum);
            }
        x[t] = sum;
        if (t < num_tokens)
            (rows + uint64_t(t) * (VALUE_HEADS * CHUNK_VECTORS * 4) + lane).v = sum * beta;
    }
}

void main() {
    uint head = gl_WorkGroupID.x, begin = gl_WorkGroupID.y * SHORTEST;
    for (uint chunks = chunks_from(begin, false); chunks != 0; chunks &= chunks - 1) {
        uint row = begin + findLSB(chunks);
        bool is_last;
        uint num_tokens = chunk_tokens(row, is_last);
        sum_gates(row, num_tokens, head);
        vec4 with_keys[2], with_queries[2];
        products(row, num_tokens, head, with_keys, with_queries);
        Floats rows = p.chunks + (uint64_t(row) * VALUE_HEADS + head) * (CHUNK_VECTORS * 4);
        [[unroll]] for (uint r = 0; r < 2; ++r) {
            uint t = lane / 8 * 2 + r;
            [[unroll]] for (uint j = 0; j < 4; ++j) {
                uint i = lane % 8 + 8 * j;
                float decay = i <= t ? decay_between(i, t) : 0;
                a[t * (CHUNK / 4) + i / 4][i % 4] = betas[t] * decay * with_keys[r][j];
                if (t < num_tokens)
                    (rows + uint64_t(t) * (VALUE_HEADS * CHUNK_VECTORS * 4) + CHUNK + i).v = decay * with_queries[r][j];
            }
        }
        barrier();
        if (lane < CHUNK)
            solve(rows, num_tokens);
        else if (lane - CHUNK < num_tokens) {
            uint t = lane - CHUNK;
            Floats decays = rows + uint64_t(t) * (VALUE_HEADS * CHUNK_VECTORS * 4) + 2 * CHUNK;
            decays.v = exp(sums[t].x + sums[t].y);
            (decays + 1).v = decay_between(t, num_tokens - 1);
        }
        barrier();
    }
}

#version 460
// Mamba-2's recurrence in chunks, the part that no state goes into. With a chunk's values X, keys B and queries C, its tokens find
//   Y = diag(d) C S + P X, and the state becomes S = d_last S + B^T diag(w) X,
// where D[t, i] is the product of the decays behind token i up to token t, P[t, i] = D[t, i] step_i c_t b_i below the diagonal and on
// it, where the skip is added, d is the product of all decays up to a token, and w that of those behind it, times its step.
// Products of queries and keys are those of all heads of values that share them: here are these, and sums of the decays' logarithms,
// of which ssm_chunks makes P, d and w for each head. A workgroup owns one head of keys (along x) of the chunks that begin in
// SHORTEST rows (along y). A lane has two rows' products with four keys, then one of the heads of values.
// Source: Transformers are SSMs (arXiv 2405.21060), section 6.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128; // what a lane has is made for so many
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY_VECTORS = 32;
layout(constant_id = 2) const uint KEY_HEADS = 1;
layout(constant_id = 3) const uint VALUE_HEADS = 1;
layout(constant_id = 4) const uint VALUE_VECTORS = 16;
layout(constant_id = 5) const bool RATES = false; // as in ssm_scan

#include "include/ssm_gates.glsl"
#include "include/long_run.glsl"

layout(push_constant, scalar) uniform P {
    Vec4s xbc; // (tokens, row_columns): values, keys, queries, as ssm_conv leaves them
    Floats steps; // (tokens, step_columns), of which the first VALUE_HEADS are steps before their softplus
    Floats rates; // (VALUE_HEADS)
    Floats step_bias; // (VALUE_HEADS)
    Runs runs; // (tokens)
    uint64_t chunks; // (tokens, left_bytes): (KEY_HEADS, CHUNK) products, (VALUE_HEADS, 4): a sum, what rounding took of it, a step
    uint row_columns; // in vec4s
    uint step_columns;
    uint left_bytes;
    uint num_rows;
    float least_step;
    float most_step;
} p;

const uint SLICE = 8; // vec4s of a head at a time
const uint STRIDE = SLICE + 1; // neighbouring rows in other banks
const float LOWEST = -128; // the exponential of less is nothing

shared vec4 queries[CHUNK * STRIDE]; // (CHUNK, STRIDE)
shared vec4 keys[CHUNK * STRIDE]; // (CHUNK, STRIDE)

#include "include/long_chunks.glsl"

uint lane = gl_LocalInvocationID.x;
uint key_head = gl_WorkGroupID.x;

// Four multiply-adds, where a sum and a dot product are five instructions.
float add_dot(float sum, vec4 a, vec4 b) {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// Products of queries 2 * lane / 8 and the next with the keys lane % 8 + 8 * j.
void multiply(uint row, uint num_tokens) {
    uint column = lane % 8, first = lane / 8 * 2;
    vec4 products[2];
    [[unroll]] for (uint r = 0; r < 2; ++r)
        products[r] = vec4(0);
    [[dont_unroll]] for (uint base = 0; base < KEY_VECTORS; base += SLICE) {
        uint width = min(SLICE, KEY_VECTORS - base);
        for (uint i = lane; i < CHUNK * SLICE; i += WORKGROUP) {
            uint token = min(i / SLICE, num_tokens - 1), at = min(i % SLICE, width - 1);
            Vec4s k = p.xbc + uint64_t(row + token) * p.row_columns + VALUE_HEADS * VALUE_VECTORS + key_head * KEY_VECTORS + base + at;
            keys[i / SLICE * STRIDE + i % SLICE] = k.v;
            queries[i / SLICE * STRIDE + i % SLICE] = (k + KEY_HEADS * KEY_VECTORS).v;
        }
        barrier();
        [[dont_unroll]] for (uint v = 0; v < width; ++v) {
            vec4 q[2];
            [[unroll]] for (uint r = 0; r < 2; ++r)
                q[r] = queries[(first + r) * STRIDE + v];
            [[unroll]] for (uint j = 0; j < 4; ++j) {
                vec4 key = keys[(column + 8 * j) * STRIDE + v];
                [[unroll]] for (uint r = 0; r < 2; ++r)
                    products[r][j] = add_dot(products[r][j], q[r], key);
            }
        }
        barrier();
    }
    [[unroll]] for (uint r = 0; r < 2; ++r) {
        Floats left = Floats(p.chunks + uint64_t(row + first + r) * p.left_bytes) + key_head * CHUNK;
        if (first + r < num_tokens)
            [[unroll]] for (uint j = 0; j < 4; ++j)
                (left + column + 8 * j).v = products[r][j];
    }
}

// Differences of sums have to be right where a gate among them is larger than all others.
void sum_gates(uint row, uint num_tokens, uint head) {
    float rate = (p.rates + head).v, bias = (p.step_bias + head).v;
    precise float sum = 0, rest = 0;
    for (uint t = 0; t < num_tokens; ++t) {
        float size = step_of((p.steps + uint64_t(row + t) * p.step_columns + head).v + bias, vec2(p.least_step, p.most_step));
        precise float gate = max(log_decay(rate, size), LOWEST);
        precise float next = sum + gate;
        precise float part = next - sum;
        rest += (sum - (next - part)) + (gate - part);
        sum = next;
        Vec4s left = Vec4s(p.chunks + uint64_t(row + t) * p.left_bytes) + KEY_HEADS * CHUNK / 4 + head;
        left.v = vec4(sum, rest, size, 0);
    }
}

void main() {
    uint begin = gl_WorkGroupID.y * SHORTEST, heads = VALUE_HEADS / KEY_HEADS;
    for (uint chunks = chunks_from(begin, false); chunks != 0; chunks &= chunks - 1) {
        uint row = begin + findLSB(chunks);
        bool is_last;
        uint num_tokens = chunk_tokens(row, is_last);
        multiply(row, num_tokens);
        for (uint head = lane; head < heads; head += WORKGROUP)
            sum_gates(row, num_tokens, key_head * heads + head);
        barrier();
    }
}

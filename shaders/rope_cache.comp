#version 460
// Norms and rotates one step's q and k, scales q, and writes k and v into the paged cache.
// One workgroup owns one head (x: q heads, then k, then v) of one token (y).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/pointers.glsl"
#include "reduce/workgroup.glsl"
#include KV

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEAD_DIM = 64; // a multiple of 8, for a cache of bytes of 64
layout(constant_id = 2) const uint BLOCK_SIZE = 16;
layout(constant_id = 3) const bool WITH_NORM = false;
layout(constant_id = 4) const bool PLUS_ONE = false; // norm weights count from 1

layout(push_constant, scalar) uniform P {
    Vec4s qkv; // (tokens, num_heads + 2 * num_kv_heads, HEAD_DIM)
    Vec4s q; // (tokens, num_heads, HEAD_DIM)
    uint64_t k_cache; // (blocks, num_kv_heads, BLOCK_SIZE, HEAD_DIM)
    uint64_t v_cache; // as k_cache
    Vec4s q_weight; // (HEAD_DIM)
    Vec4s k_weight; // (HEAD_DIM)
    Uvec2s freqs; // (HEAD_DIM / 2): high and low half of the turns per position, a 0.64 fixed-point fraction
    Uints positions; // (tokens)
    Uints slot_mapping; // (tokens): block * BLOCK_SIZE + offset, or NO_SLOT
    uint num_heads;
    uint num_kv_heads;
    float eps;
    float q_scale;
} p;

const uint NO_SLOT = 0xffffffff;
const uint HALF = HEAD_DIM / 8; // vec4s in half a head

// (cos, sin) of an angle given in 2^-32 turns. Minimax polynomials within an eighth of a turn of each quadrant's axis.
vec2 direction(uint phase) {
    uint quadrant = (phase + 0x20000000u) >> 30;
    float a = float(int(phase - (quadrant << 30))) * 1.4629180792671596e-9; // 2 * pi / 2^32
    float b = a * a;
    float s = a + a * b * (-1.6666654611e-1 + b * (8.3321608736e-3 - b * 1.9515295891e-4));
    float c = 1.0 - 0.5 * b + b * b * (4.166664568298827e-2 + b * (-1.388731625493765e-3 + b * 2.443315711809948e-5));
    vec2 turned = (quadrant & 1u) != 0u ? vec2(-s, c) : vec2(c, s);
    return (quadrant & 2u) != 0u ? -turned : turned;
}

void rotate(uint position, uint i, inout vec4 low, inout vec4 high) {
    [[unroll]] for (uint j = 0; j < 4; ++j) {
        uvec2 freq = (p.freqs + (4 * i + j)).v;
        uint upper, lower;
        umulExtended(freq.y, position, upper, lower);
        vec2 d = direction(freq.x * position + upper);
        float turned = low[j] * d.x - high[j] * d.y;
        high[j] = high[j] * d.x + low[j] * d.y;
        low[j] = turned;
    }
}

void main() {
    uint token = gl_WorkGroupID.y;
    uint head = gl_WorkGroupID.x;
    bool is_q = head < p.num_heads;
    bool is_v = head >= p.num_heads + p.num_kv_heads;
    Vec4s source = p.qkv + uint64_t(token * gl_NumWorkGroups.x + head) * (2 * HALF);

    uint slot = is_q ? 0 : (p.slot_mapping + token).v;
    if (slot == NO_SLOT)
        return;
    uint kv_head = (head - p.num_heads) % p.num_kv_heads;
    uint cache_row = ((slot / BLOCK_SIZE) * p.num_kv_heads + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE;
    KvRow target = kv_row(is_v ? p.v_cache : p.k_cache, cache_row, HEAD_DIM, BLOCK_SIZE);

    float scale = 1;
    if (WITH_NORM && !is_v) {
        float squares = 0;
        for (uint i = gl_LocalInvocationID.x; i < 2 * HALF; i += WORKGROUP) {
            vec4 value = (source + i).v;
            squares += dot(value, value);
        }
        scale = inversesqrt(workgroup_sum(squares) / float(HEAD_DIM) + p.eps);
    }
    Vec4s weight = is_q ? p.q_weight : p.k_weight;
    Vec4s q = p.q + uint64_t(token * p.num_heads + head) * (2 * HALF);
    uint position = (p.positions + token).v;

    for (uint i = kv_lane(); i < HALF; i += WORKGROUP) {
        vec4 low = (source + i).v;
        vec4 high = (source + i + HALF).v;
        if (WITH_NORM && !is_v) {
            vec4 low_weight = (weight + i).v;
            vec4 high_weight = (weight + i + HALF).v;
            low *= scale * (PLUS_ONE ? 1 + low_weight : low_weight);
            high *= scale * (PLUS_ONE ? 1 + high_weight : high_weight);
        }
        if (!is_v)
            rotate(position, i, low, high);
        if (is_q) {
            (q + i).v = low * p.q_scale;
            (q + i + HALF).v = high * p.q_scale;
        } else {
            kv_store4(target, 4 * i, low);
            kv_store4(target, 4 * i + HEAD_DIM / 2, high);
        }
    }
}

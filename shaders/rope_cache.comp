#version 460
// Norms and rotates one step's q and k, scales q, and writes k and v into the paged cache.
// One workgroup owns one head (x: q heads, then k, then v, or q heads alone) of one token (y).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/pointers.glsl"
#include KV

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEAD_DIM = 64; // a multiple of 8, for a cache of bytes of 64
layout(constant_id = 2) const uint BLOCK_SIZE = 16;
layout(constant_id = 3) const bool WITH_NORM = false;
layout(constant_id = 4) const bool PLUS_ONE = false; // norm weights count from 1
layout(constant_id = 5) const uint LANES = 8; // that norm a head together, as in attention_decode
layout(constant_id = 6) const float AMPLITUDE = 1;
layout(constant_id = 7) const uint ROTARY_PAIRS = 0;
layout(constant_id = 8) const float Q_GROWTH = 0;
layout(constant_id = 9) const uint Q_PERIOD = 1;
layout(constant_id = 10) const bool Q_GATED = false; // behind each head of q in qkv lies one of a gate
layout(constant_id = 11) const bool V_NORM = false; // without weights; with WITH_NORM alone
layout(constant_id = 12) const bool V_FROM_K = false; // qkv has no v heads: they are the k heads, neither normed nor rotated

layout(push_constant, scalar) uniform P {
    Vec4s qkv; // (tokens, num_heads + 2 * num_kv_heads, HEAD_DIM), with Q_GATED num_heads more, with V_FROM_K without v
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

#include "include/head_rotation.glsl"

void main() {
    uint token = gl_WorkGroupID.y;
    uint head = gl_WorkGroupID.x;
    bool is_q = head < p.num_heads;
    bool is_v = head >= p.num_heads + p.num_kv_heads;
    uint row_heads = gl_NumWorkGroups.x + (Q_GATED ? p.num_heads : 0) - (V_FROM_K ? p.num_kv_heads : 0);
    uint place = head + (Q_GATED ? min(head, p.num_heads) : 0) - (V_FROM_K && is_v ? p.num_kv_heads : 0);
    Vec4s source = p.qkv + uint64_t(token * row_heads + place) * (2 * HALF);

    uint slot = is_q ? 0 : (p.slot_mapping + token).v;
    if (slot == NO_SLOT)
        return;
    uint kv_head = (head - p.num_heads) % p.num_kv_heads;
    KvRow target = kv_row(is_v ? p.v_cache : p.k_cache, slot, kv_head, p.num_kv_heads, HEAD_DIM, BLOCK_SIZE);

    float scale = is_v && !V_NORM ? 1 : norm_scale(source, p.eps);
    Vec4s weight = is_q ? p.q_weight : p.k_weight;
    Vec4s q = p.q + uint64_t(token * p.num_heads + head) * (2 * HALF);
    uint position = (p.positions + token).v;
    float q_scale = query_scale(p.q_scale, position);

    for (uint i = kv_lane(); i < HALF; i += WORKGROUP) {
        vec4 low = (source + i).v, high = (source + i + HALF).v;
        if (!is_v) {
            norm_pairs(weight, i, scale, low, high);
            vec2 to[4];
            directions(p.freqs, position, i, to);
            rotate(to, low, high);
        } else if (V_NORM) {
            low *= scale;
            high *= scale;
        }
        if (is_q) {
            (q + i).v = low * q_scale;
            (q + i + HALF).v = high * q_scale;
        } else {
            kv_store4(target, 4 * i, low);
            kv_store4(target, 4 * i + HEAD_DIM / 2, high);
        }
    }
}

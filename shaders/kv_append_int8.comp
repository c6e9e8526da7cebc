#version 460
// Brings a step's new keys and values, which are halves in the tokens' order, into their slots of a paged cache of bytes.
// One workgroup owns one kv head (x) of one token (y).
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/kv_int8.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Halves { uvec2 v; };

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEAD_DIM = 64; // a multiple of 64
layout(constant_id = 2) const uint BLOCK_SIZE = 16;

layout(push_constant, scalar) uniform P {
    Halves k_new; // (tokens, num_kv_heads, HEAD_DIM)
    Halves v_new; // as k_new
    uint64_t k_cache; // see include/kv_int8.glsl
    uint64_t v_cache; // as k_cache
    Uints slot_mapping; // (tokens): block * BLOCK_SIZE + offset, or NO_SLOT
} p;

const uint NO_SLOT = 0xffffffff;
const uint QUADS = HEAD_DIM / 4;

vec4 halves(Halves from) {
    return vec4(unpackHalf2x16(from.v.x), unpackHalf2x16(from.v.y));
}

void main() {
    uint slot = (p.slot_mapping + gl_WorkGroupID.y).v;
    if (slot == NO_SLOT)
        return;
    uint kv_heads = gl_NumWorkGroups.x, kv_head = gl_WorkGroupID.x;
    uint64_t source = uint64_t(gl_WorkGroupID.y * kv_heads + kv_head) * QUADS;
    KvRow key = kv_row(p.k_cache, slot, kv_head, kv_heads, HEAD_DIM, BLOCK_SIZE);
    KvRow value = kv_row(p.v_cache, slot, kv_head, kv_heads, HEAD_DIM, BLOCK_SIZE);
    for (uint i = kv_lane(); i < QUADS; i += WORKGROUP) {
        kv_store4(key, 4 * i, halves(p.k_new + (source + i)));
        kv_store4(value, 4 * i, halves(p.v_new + (source + i)));
    }
}

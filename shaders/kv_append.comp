#version 460
// Copies a step's new keys and values, which are in the tokens' order, to their slots of the paged cache.
// One workgroup owns one kv head (x) of one token (y).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#include "include/pointers.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Uvec4s { uvec4 v; };

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEAD_WORDS = 8; // words of 16 bytes of a head, in the cache's type
layout(constant_id = 2) const uint BLOCK_SIZE = 16;

layout(push_constant, scalar) uniform P {
    Uvec4s k_new; // (tokens, num_kv_heads, HEAD_WORDS)
    Uvec4s v_new; // as k_new
    Uvec4s k_cache; // (blocks, num_kv_heads, BLOCK_SIZE, HEAD_WORDS)
    Uvec4s v_cache; // as k_cache
    Uints slot_mapping; // (tokens): block * BLOCK_SIZE + offset, or NO_SLOT
} p;

const uint NO_SLOT = 0xffffffff;

void main() {
    uint slot = (p.slot_mapping + gl_WorkGroupID.y).v;
    if (slot == NO_SLOT)
        return;
    uint kv_heads = gl_NumWorkGroups.x, kv_head = gl_WorkGroupID.x;
    uint64_t source = uint64_t(gl_WorkGroupID.y * kv_heads + kv_head) * HEAD_WORDS;
    uint64_t block = uint64_t(slot / BLOCK_SIZE) * kv_heads + kv_head;
    uint64_t target = (block * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_WORDS;
    for (uint i = gl_LocalInvocationID.x; i < HEAD_WORDS; i += WORKGROUP) {
        (p.k_cache + (target + i)).v = (p.k_new + (source + i)).v;
        (p.v_cache + (target + i)).v = (p.v_new + (source + i)).v;
    }
}

#version 460
// Rounds a step's new keys and values to bf16 and writes them to their slots of an NPU's cache, in its tiles.
// One workgroup owns one kv head (x) of one token (y).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#include "include/pointers.glsl"
#include "include/round_bf16.glsl"
#include "include/npu_rows.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly buffer Bf16s { uint16_t v; };

layout(push_constant, scalar) uniform P {
    Floats k;      // (tokens, kv_heads, HEAD_DIM)
    Floats v;      // as k
    Rows rows;     // (tokens)
    Bf16s cache;   // (kv_heads, chunks, 2): K is (keys / 4, HEAD_DIM / 8, 4, 8), V is (keys / 8, HEAD_DIM / 4, 4, 8 keys)
    uint chunks;   // of a kv head
} p;

const uint HALF = 2048;  // elements of a chunk's K, or of its V

void main() {
    const uint token = gl_WorkGroupID.y, kv_head = gl_WorkGroupID.x;
    const uint slot = (p.rows + token).v.slot;
    if (slot == NO_SLOT)
        return;
    const uint keys = HALF / HEAD_DIM, key = slot % keys;
    const uint64_t chunk = (uint64_t(kv_head) * p.chunks + slot / keys) * (2 * HALF);
    const uint64_t source = uint64_t(token * gl_NumWorkGroups.x + kv_head) * HEAD_DIM;
    for (uint d = gl_LocalInvocationID.x; d < HEAD_DIM; d += WORKGROUP) {
        const uint k_place = ((key / 4 * (HEAD_DIM / 8) + d / 8) * 4 + key % 4) * 8 + d % 8;
        const uint v_place = ((key / 8 * (HEAD_DIM / 4) + d / 4) * 4 + d % 4) * 8 + key % 8;
        (p.cache + (chunk + k_place)).v = uint16_t(bits((p.k + (source + d)).v));
        (p.cache + (chunk + HALF + v_place)).v = uint16_t(bits((p.v + (source + d)).v));
    }
}

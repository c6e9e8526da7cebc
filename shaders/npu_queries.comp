#version 460
// Rounds rotated queries to bf16 and writes them where an NPU reads them: into packets, row by row of its items.
// One workgroup owns the heads of one kv head (x) of one token (y).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#include "include/pointers.glsl"
#include "include/round_bf16.glsl"
#include "include/npu_rows.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly buffer Bf16s { uint16_t v; };

layout(push_constant, scalar) uniform P {
    Floats q;      // (tokens, kv_heads, GROUP, HEAD_DIM)
    Rows rows;     // (tokens)
    Bf16s packets; // (items, 3 buffers, 8192 bytes); queries begin in the second, (strips, HEAD_DIM, TILE_N)
} p;

const uint CORE_BUFFER = 4096;  // elements

void main() {
    const uint token = gl_WorkGroupID.y, kv_head = gl_WorkGroupID.x;
    const Row row = (p.rows + token).v;
    if (row.slot == NO_SLOT)
        return;
    const uint64_t source = uint64_t(token * gl_NumWorkGroups.x + kv_head) * (GROUP * HEAD_DIM);
    const uint64_t packet = uint64_t(row.item + kv_head) * (3 * CORE_BUFFER) + CORE_BUFFER;
    for (uint i = gl_LocalInvocationID.x; i < GROUP * HEAD_DIM; i += WORKGROUP)
        (p.packets + (packet + place_in_strips(row.first + i / HEAD_DIM, i % HEAD_DIM))).v =
            uint16_t(bits((p.q + (source + i)).v));
}

#version 460
// Reads an NPU's results, strip by strip of its items, into rows of tokens; those of padding become zero.
// One workgroup owns the heads of one kv head (x) of one token (y).
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/npu_rows.glsl"

layout(push_constant, scalar) uniform P {
    Floats results; // (items, strips, HEAD_DIM, TILE_N)
    Rows rows;      // (tokens)
    Floats attended; // (tokens, kv_heads, GROUP, HEAD_DIM)
} p;

void main() {
    const uint token = gl_WorkGroupID.y, kv_head = gl_WorkGroupID.x;
    const Row row = (p.rows + token).v;
    const uint64_t target = uint64_t(token * gl_NumWorkGroups.x + kv_head) * (GROUP * HEAD_DIM);
    const uint64_t item = uint64_t(row.item + kv_head) * row.stride;
    for (uint i = gl_LocalInvocationID.x; i < GROUP * HEAD_DIM; i += WORKGROUP) {
        float value = 0.0;
        if (row.slot != NO_SLOT)
            value = (p.results + (item + place_in_strips(row.first + i / HEAD_DIM, i % HEAD_DIM))).v;
        (p.attended + (target + i)).v = value;
    }
}

// Brings activations into blocks of 32 signed bytes, see include/block_store.glsl. One invocation owns four elements.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_GOOGLE_include_directive : require

#include "include/block_store.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Input { vec4 v[]; };

layout(push_constant, scalar) uniform P {
    Input x;            // (rows, blocks, 32)
    BlockCodes codes;   // (rows, 2, blocks, 16) bytes
    BlockScales scale;  // (rows, blocks)
    uint rows;
    uint blocks;
} p;

void main() {
    const uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    const uint quad = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + lane;
    if (quad < p.rows * p.blocks * 8) {
        store_quad(p.codes, p.scale, quad / (p.blocks * 8), p.blocks, quad % (p.blocks * 8), p.x.v[quad]);
    }
}

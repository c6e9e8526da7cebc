// Copies n blocks of 16 bytes: what memory gives a kernel that writes what it reads.
// A workgroup owns WORKGROUP * LOADS blocks, each lane LOADS of them, all read before any is written; workgroups are
// counted along x, then y.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint LOADS = 4;
layout(local_size_x = 256, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Source { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Target { uvec4 v[]; };

layout(push_constant, scalar) uniform P {
    Source source;  // (n)
    Target target;  // (n)
    uint n;
} p;

void main() {
    const uint workgroup = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint first = workgroup * WORKGROUP * LOADS + gl_LocalInvocationID.x;
    uvec4 blocks[LOADS];
    [[unroll]] for (uint i = 0; i < LOADS; i++) {
        blocks[i] = p.source.v[min(first + i * WORKGROUP, p.n - 1)];
    }
    [[unroll]] for (uint i = 0; i < LOADS; i++) {
        if (first + i * WORKGROUP < p.n) {
            p.target.v[first + i * WORKGROUP] = blocks[i];
        }
    }
}

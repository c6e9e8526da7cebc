// Reads n blocks of 16 bytes once and keeps nothing: what memory gives a kernel that does nothing else.
// A workgroup owns WORKGROUP * LOADS blocks; workgroups are counted along x, then y.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint LOADS = 8;
layout(local_size_x = 256, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Blocks { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Words { uint v[]; };

layout(push_constant, scalar) uniform P {
    Blocks source;  // (n)
    Words sink;     // (1), written by no values that are likely
    uint n;
} p;

void main() {
    const uint workgroup = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint first = workgroup * WORKGROUP * LOADS + gl_LocalInvocationID.x;
    uvec4 mixed = uvec4(0);
    [[unroll]] for (uint i = 0; i < LOADS; i++) {
        mixed ^= p.source.v[min(first + i * WORKGROUP, p.n - 1)];
    }
    if (mixed == uvec4(0x9e3779b9, 0x7f4a7c15, 0xf39cc060, 0x5ced8342)) {
        p.sink.v[0] = 1;
    }
}

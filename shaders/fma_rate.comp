// The rate of multiplying and adding single-precision numbers in registers. A lane owns 2 vectors of 4 sums, and adds to
// each of them 4 times a round.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP = 256;
layout(local_size_x = 256, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Vectors { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Floats { float v[]; };

layout(push_constant, scalar) uniform P {
    Vectors source;  // (WORKGROUP + 2)
    Floats sums;     // (workgroups, WORKGROUP)
    uint rounds;
} p;

void main() {
    const vec4 factor = p.source.v[gl_LocalInvocationID.x];
    vec4 sums[2];
    [[unroll]] for (uint i = 0; i < 2; i++) {
        sums[i] = p.source.v[gl_LocalInvocationID.x + i];
    }
    for (uint round = 0; round < p.rounds; round++) {
        [[unroll]] for (uint i = 0; i < 8; i++) {
            sums[i % 2] = sums[i % 2] * factor + factor;
        }
    }
    vec4 total = vec4(0);
    [[unroll]] for (uint i = 0; i < 2; i++) {
        total += sums[i];
    }
    p.sums.v[gl_WorkGroupID.x * WORKGROUP + gl_LocalInvocationID.x] = dot(total, vec4(1));
}

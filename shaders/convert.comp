// Converts n contiguous elements to another floating-point type, and counts those that it can't hold.
// A workgroup owns 8 * WORKGROUP elements; workgroups are counted along x, then y.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Blocks { uvec4 v[]; };

#include FORMAT
#include DESTINATION
#include "include/out_of_range.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Elements { DST_ELEMENT v[]; };

layout(push_constant, scalar) uniform P {
    Weights src;    // (n)
    Blocks dst;     // (n)
    Counter out_of_range;  // (1) or null
    uint n;
} p;

void main() {
    const uint block = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    const uint first = block * 8;
    if (first + 8 <= p.n) {
        const Raw8 raw = fetch8(p.src, block);
        vec4 low, high;
        unpack8(raw, low, high);
        store8(p.dst, block, raw, low, high);
        count_out_of_range(p.out_of_range, num_beyond(low, LARGEST) + num_beyond(high, LARGEST));
        return;
    }
    for (uint i = first; i < p.n; i++) {
        const float value = fetch1(p.src, i);
        Elements(p.dst).v[i] = narrowed(value);
        count_out_of_range(p.out_of_range, num_beyond(vec4(value, vec3(0.0)), LARGEST));
    }
}

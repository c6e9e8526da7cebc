// Converts n contiguous elements to single or half precision; half saturates.
// A workgroup owns 8 * WORKGROUP elements; workgroups are counted along x, then y.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_GOOGLE_include_directive : require

#include FORMAT

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Blocks { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Elements { DST_ELEMENT v[]; };

layout(push_constant, scalar) uniform P {
    Weights src;  // (n)
    Blocks dst;   // (n)
    uint n;
} p;

void main() {
    const uint block = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    const uint first = block * 8;
    if (first + 8 <= p.n) {
        const Raw8 raw = fetch8(p.src, block);
#if DST_BYTES == 2
        p.dst.v[block] = half8(raw);
#else
        vec4 low, high;
        unpack8(raw, low, high);
        p.dst.v[2 * block] = floatBitsToUint(low);
        p.dst.v[2 * block + 1] = floatBitsToUint(high);
#endif
        return;
    }
    for (uint i = first; i < p.n; i++) {
        const float value = fetch1(p.src, i);
#if DST_BYTES == 2
        Elements(p.dst).v[i] = DST_ELEMENT(clamp(value, -65504.0, 65504.0));
#else
        Elements(p.dst).v[i] = value;
#endif
    }
}

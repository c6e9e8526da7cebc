// Puts elements of matrices (matrices, rows, columns) where they belong with rows and columns in each other's place: (matrices,
// columns, rows). They are n that follow each other, from one on; an invocation owns one, and workgroups count along x, then y.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Source { ELEMENT v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Destination { ELEMENT v[]; };

layout(push_constant, scalar) uniform P {
    Source src;       // (n)
    Destination dst;  // (matrices, columns, rows)
    uint first;       // element of (matrices, rows, columns) that is the source's first
    uint n;
    uint rows;
    uint columns;
} p;

void main() {
    const uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (i >= p.n) {
        return;
    }
    const uint at = p.first + i;
    const uint line = at / p.columns;
    const uint matrix = line / p.rows;
    p.dst.v[(matrix * p.columns + at % p.columns) * p.rows + line % p.rows] = p.src.v[i];
}

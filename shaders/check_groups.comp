// Counts columns that are not in the group in which they would be one after the other. One invocation owns a column.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_GOOGLE_include_directive : require

#include "include/out_of_range.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Groups { uint v[]; };

layout(push_constant, scalar) uniform P {
    Groups src;  // (columns)
    Counter unexpected;  // (1)
    uint first_column;
    uint columns;
    uint group;  // columns of one
} p;

void main() {
    const uint column = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (column < p.columns) {
        count_out_of_range(p.unexpected, p.src.v[column] == (p.first_column + column) / p.group ? 0 : 1);
    }
}

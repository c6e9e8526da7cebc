// Puts the columns of rows into another order. One invocation owns an element of the result.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Values { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Result { float v[]; };

layout(push_constant, scalar) uniform P {
    Values x;      // (rows, columns)
    Values order;  // (columns): which column of x comes where
    Result y;      // (rows, columns)
    uint rows;
    uint columns;
} p;

void main() {
    const uint index = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (index < p.rows * p.columns) {
        const uint row = index / p.columns;
        p.y.v[index] = p.x.v[row * p.columns + min(uint(p.order.v[index - row * p.columns]), p.columns - 1)];
    }
}

// Sorts the columns of a matrix by their groups, those of a group as they were. One invocation owns a column.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Groups { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Order { float v[]; };

layout(push_constant, scalar) uniform P {
    Groups src;  // (columns)
    Order order; // (columns): which of the file's columns lies where
    uint columns;
    uint group;  // columns of one
} p;

shared uint tile[WORKGROUP];

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint column = gl_WorkGroupID.x * WORKGROUP + lane;
    const uint own = column < p.columns ? p.src.v[column] : 0;
    uint before = 0;
    for (uint first = 0; first < p.columns; first += WORKGROUP) {
        tile[lane] = first + lane < p.columns ? p.src.v[first + lane] : 0;
        barrier();
        for (uint i = 0; i < min(WORKGROUP, p.columns - first); i++) {
            before += tile[i] == own && first + i < column ? 1 : 0;
        }
        barrier();
    }
    // What a file has that was changed since its groups were checked stays within the order.
    const uint place = own * p.group + before;
    if (column < p.columns && place < p.columns) {
        p.order.v[place] = float(column);
    }
}

// Adds a low-rank change to contiguous elements of a matrix in single precision: weights += scale * left * right.
// A workgroup owns ROWS rows of COLUMNS * WORKGROUP columns; workgroups are counted along x, then y, columns first.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

const uint ROWS = 16;
const uint COLUMNS = 8;

layout(buffer_reference, scalar, buffer_reference_align = 4) restrict buffer Elements { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Factor { float v[]; };

// A factor's element is found by two strides, so that either may lie transposed.
layout(push_constant, scalar) uniform P {
    Elements weights;  // (count), from first_column of the first row on
    Factor left;       // (rows, rank), from the first row on
    Factor right;      // (rank, columns)
    uint columns;
    uint first_column;
    uint count;
    uint rank;
    uint left_row;
    uint left_rank;
    uint right_rank;
    uint right_column;
    float scale;
} p;

void main() {
    const uint end = p.first_column + p.count;  // elements from the first row's start on
    const uint num_rows = (end + p.columns - 1) / p.columns;
    const uint tiles = (p.columns + COLUMNS * WORKGROUP - 1) / (COLUMNS * WORKGROUP);
    const uint tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint first_row = tile / tiles * ROWS;
    const uint column = tile % tiles * COLUMNS * WORKGROUP + gl_LocalInvocationID.x;
    if (first_row >= num_rows) {
        return;
    }
    uint left[ROWS];
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        left[i] = min(first_row + i, num_rows - 1) * p.left_row;
    }
    uint right[COLUMNS];
    [[unroll]] for (uint j = 0; j < COLUMNS; j++) {
        right[j] = min(column + j * WORKGROUP, p.columns - 1) * p.right_column;
    }
    float sums[ROWS][COLUMNS];
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        [[unroll]] for (uint j = 0; j < COLUMNS; j++) {
            sums[i][j] = 0.0;
        }
    }
    for (uint k = 0; k < p.rank; k++) {
        float factors[COLUMNS];
        [[unroll]] for (uint j = 0; j < COLUMNS; j++) {
            factors[j] = p.right.v[right[j] + k * p.right_rank];
        }
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const float factor = p.left.v[left[i] + k * p.left_rank];
            [[unroll]] for (uint j = 0; j < COLUMNS; j++) {
                sums[i][j] += factor * factors[j];
            }
        }
    }
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        [[unroll]] for (uint j = 0; j < COLUMNS; j++) {
            const uint at = (first_row + i) * p.columns + column + j * WORKGROUP;
            if (column + j * WORKGROUP < p.columns && at >= p.first_column && at < end) {
                p.weights.v[at - p.first_column] += p.scale * sums[i][j];
            }
        }
    }
}

// Brings codes that lie in a file by columns of the matrix into the planes that kernels read, columns in another order. One
// invocation owns 32 columns of a row there; what the lines that were read do not have of them stays as it is.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include "include/code_words.glsl"
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Source { uint v[]; };
#include CODES

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Order { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Planes { uvec4 v[]; };

layout(push_constant, scalar) uniform P {
    Source src;        // (columns / COLUMNS_A_WORD, width) words
    Order order;       // (columns): which of the file's lies where
    Planes quants;     // (rows, row_blocks) from the first row on
    uint width;        // words of a line
    uint first_row;    // of the file's rows, and so many from there
    uint rows;
    uint first_column; // of the lines that were read, and so many from there
    uint columns;
    uint row_blocks;   // of the whole matrix
} p;

void main() {
    const uint index = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (index >= p.rows * p.row_blocks) {
        return;
    }
    const uint row = index % p.rows;
    const uint block = index / p.rows;
    const uint place = (row * p.row_blocks + block) * (BITS / 4);
    uvec4 words[BITS / 4];
    [[unroll]] for (uint part = 0; part < BITS / 4; part++) {
        words[part] = p.quants.v[place + part];
    }
    [[unroll]] for (uint i = 0; i < 32; i++) {
        const uint column = uint(p.order.v[block * 32 + i]);
        if (column - p.first_column < p.columns) {
            const uint word = i / 4; // as store_codes has it: elements of a word in the order 0, 2, 1, 3
            const uint shift = 8 * (i % 4 == 1 ? 2 : i % 4 == 2 ? 1 : i % 4) + (BITS == 4 ? 4 * (word / 2 % 2) : 0);
            const uint part = BITS == 4 ? 0 : word / 4;
            const uint at = BITS == 4 ? word / 4 * 2 + word % 2 : word % 4;
            const uint own = code(p.src, p.width, p.first_row + row, column);
            words[part][at] = bitfieldInsert(words[part][at], own, int(shift), BITS);
        }
    }
    [[unroll]] for (uint part = 0; part < BITS / 4; part++) {
        p.quants.v[place + part] = words[part];
    }
}

// Brings codes that lie in a file by columns of the matrix into the planes that kernels read. One invocation owns 32 columns
// of a row; neighbours have neighbouring rows.
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

layout(push_constant, scalar) uniform P {
    Source src;        // (columns / COLUMNS_A_WORD, width) words
    Quants quants;     // (rows, row_blocks) from the first row on
    High high;         // likewise
    uint width;        // words of a line
    uint first_row;    // of the file's rows, and so many from there
    uint rows;
    uint first_block;  // of a row's blocks, and so many from there
    uint blocks;
    uint row_blocks;   // of the whole matrix
} p;

void main() {
    const uint index = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (index >= p.rows * p.blocks) {
        return;
    }
    const uint row = index % p.rows;
    const uint block = p.first_block + index / p.rows;
    uint words[8];
    for (uint w = 0; w < 8; w++) {
        ivec4 codes;
        [[unroll]] for (uint i = 0; i < 4; i++) {
            codes[i] = int(code(p.src, p.width, p.first_row + row, block * 32 + w * 4 + i));
        }
        words[w] = code_word(codes);
    }
    store_codes(p.quants, p.high, row * p.row_blocks + block, words);
}

// Spreads zero points that rows and columns of a matrix share over the units of its quantised form, or counts those that are
// not as they have to be. One invocation owns a unit.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_GOOGLE_include_directive : require

#include "include/out_of_range.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(constant_id = 1) const uint BITS = 4;  // of a zero point; a word has those of rows that follow each other
layout(constant_id = 2) const bool EVEN_FIRST = false;  // even rows in its lower half and odd ones in the upper, as AWQ has them
layout(constant_id = 3) const bool IS_CHECKED = false;  // against `expected`, and not kept
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Words { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Zeros { uint16_t v[]; };

layout(push_constant, scalar) uniform P {
    Words src;             // by row_block rows and column_block columns, or by columns and rows
    Zeros dst;             // (rows, row_units, 2) from the first row on, of which the second is written
    Counter unexpected;    // (1) or null
    uint row_step;         // words from one row_block to the next
    uint column_step;      // and from one column_block to the next
    uint row_block;        // rows of a word
    uint column_block;
    uint first_row;        // of the file's rows, and so many from there
    uint rows;
    uint first_unit;       // of a row's units, and so many from there
    uint units;
    uint row_units;        // of the whole matrix
    uint unit;             // columns of a unit
    uint added;            // to what the file has
    uint expected;         // if IS_CHECKED
} p;

void main() {
    const uint index = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (index >= p.rows * p.units) {
        return;
    }
    const uint row = p.first_row + index / p.units;
    const uint unit = p.first_unit + index % p.units;
    const uint word = p.src.v[row / p.row_block * p.row_step + unit * p.unit / p.column_block * p.column_step];
    const uint place = row % p.row_block;
    const uint shift = EVEN_FIRST ? 16 * (place % 2) + 4 * (place / 2) : BITS * place;
    const uint zero = bitfieldExtract(word, int(shift), int(BITS)) + p.added;
    if (IS_CHECKED) {
        count_out_of_range(p.unexpected, zero == p.expected ? 0 : 1);
    } else {
        p.dst.v[2 * (index / p.units * p.row_units + unit) + 1] = uint16_t(zero);
    }
}

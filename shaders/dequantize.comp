// Makes half-precision values of codes as a file has them, and counts those that are none or too large. Scales, zero points and
// groups of columns are found by row and column of the whole matrix. Rows become columns of matrices where that is wanted. One
// invocation owns an element; neighbours have neighbouring rows.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include "include/code_words.glsl"
#include "include/out_of_range.glsl"
#include "quantize/half_nearest.glsl"
#ifdef BY_COLUMNS
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Source { uint v[]; };
#endif
#include CODES

const uint FLOATS = 0;   // E4M3
const uint SIGNED = 1;   // bytes
const uint NIBBLES = 2;  // without a sign
const uint LEVELS = 3;   // choices of NormalFloat4

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(constant_id = 1) const uint MEANING = FLOATS;  // of codes
layout(constant_id = 2) const uint COLUMNS = 512;     // of the matrix
layout(constant_id = 3) const uint SOURCE = 0;        // of scales, as relayout_scales has it
layout(constant_id = 4) const uint ROW_BLOCK = 128;   // rows and columns that share a scale
layout(constant_id = 5) const uint COLUMN_BLOCK = 128;
layout(constant_id = 6) const uint ROW_STEP = 4;      // scales from one such block to the next
layout(constant_id = 7) const uint COLUMN_STEP = 1;
layout(constant_id = 8) const uint NESTED_BLOCK = 1;  // if SOURCE is 3
layout(constant_id = 9) const uint ZERO_BITS = 0;     // of a zero point, 0 without; a word has those of rows that follow each other
layout(constant_id = 10) const uint ZERO_ROWS = 8;    // so many
layout(constant_id = 11) const uint ZERO_ROW_STEP = 1;
layout(constant_id = 12) const uint ZERO_COLUMN_STEP = 1;
layout(constant_id = 13) const uint ADDED = 0;        // to zero points of the file
layout(constant_id = 14) const bool EVEN_FIRST = false;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Words { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) readonly restrict buffer Halves { uint16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Singles { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Values { uint16_t v[]; };

layout(push_constant, scalar) uniform P {
    Source src;           // codes of the matrix from its first line on, whichever lines are there
    Words scales;         // all of the matrix
    Words zeros;          // all of the matrix, if ZERO_BITS
    Words groups;         // (COLUMNS) or null: those that have the scales of columns
    Singles levels;       // (256), if SOURCE is 3; what they are multiplied by follows, one for NESTED_BLOCK scales each
    Values dst;           // (rows, COLUMNS), or (matrices, COLUMNS, turned_rows)
    Counter out_of_range; // (1)
    uint width;           // words of a line, of codes by columns
    uint first_row;       // of the file's rows, and so many from there
    uint rows;
    uint row;             // of the destination, where the first one belongs
    uint first_column;    // and so many from there
    uint columns;
    uint turned_rows;     // that become columns of a matrix, 0 where they stay rows
    float nested_offset;  // if SOURCE is 3
} p;

const uint LARGEST = 0x477fe000u;  // the bits of 65504.0
const uint NUM_GROUPS = (COLUMNS + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
const float NORMAL_FLOATS[16] = float[16](
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0);

int code_at(uint row, uint column) {
#ifdef BY_COLUMNS
    return int(code(p.src, p.width, row, column));
#else
    const uint element = row * COLUMNS + column;
    return four_codes(p.src, element / 32, element % 32 / 4)[element % 4];
#endif
}

bool is_code(int code) {
    return MEANING != FLOATS || (code & 0x7f) != 0x7f;
}

float meant(int code, int zero) {
    if (MEANING == FLOATS) {
        const uint magnitude = uint(code) & 0x7fu;
        const float size = magnitude < 8 ? float(magnitude) / 512.0 : uintBitsToFloat((magnitude << 20) + (120u << 23));
        return (code & 0x80) != 0 ? -size : size;
    }
    if (MEANING == LEVELS) {
        return NORMAL_FLOATS[code];
    }
    return float((MEANING == SIGNED ? bitfieldExtract(code, 0, 8) : code) - zero);
}

// The code that stands for zero.
int zero_at(uint row, uint group) {
    if (ZERO_BITS == 0) {
        return MEANING == NIBBLES ? 8 : 0;
    }
    const uint word = p.zeros.v[row / ZERO_ROWS * ZERO_ROW_STEP + group * ZERO_COLUMN_STEP];
    const uint place = row % ZERO_ROWS;
    const uint shift = EVEN_FIRST ? 16 * (place % 2) + 4 * (place / 2) : ZERO_BITS * place;
    return int(bitfieldExtract(word, int(shift), int(ZERO_BITS)) + ADDED) - (MEANING == SIGNED ? 128 : 0);
}

float scale_at(uint row, uint group) {
    const uint index = row / ROW_BLOCK * ROW_STEP + group * COLUMN_STEP;
    if (SOURCE == 3) {
        const uint choice = p.scales.v[index / 4] >> 8 * (index % 4) & 0xffu;
        precise float scale = p.levels.v[choice] * p.levels.v[256 + index / NESTED_BLOCK];
        scale += p.nested_offset;
        return scale;
    }
    if (SOURCE == 0) {
        return uintBitsToFloat(p.scales.v[index]);
    }
    const uint bits = uint(Halves(p.scales).v[index]);
    return SOURCE == 1 ? unpackHalf2x16(bits).x : uintBitsToFloat(bits << 16);
}

void main() {
    const uint index = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (index >= p.rows * p.columns) {
        return;
    }
    const uint row = p.first_row + index % p.rows;
    const uint column = p.first_column + index / p.rows;
    const uint group = uint64_t(p.groups) == 0 ? column / COLUMN_BLOCK : p.groups.v[column];
    const int code = code_at(row, column);
    float value = 0.0;
    uint beyond = 1;
    if (group < NUM_GROUPS && is_code(code)) {
        value = meant(code, zero_at(row, group)) * scale_at(row, group);
        beyond = num_beyond(vec4(value, vec3(0.0)), LARGEST);
    }
    count_out_of_range(p.out_of_range, beyond);
    const uint own = p.row + index % p.rows;
    const uint turned = max(p.turned_rows, 1);
    const uint to = p.turned_rows == 0 ? own * COLUMNS + column
                                       : (own / turned * COLUMNS + column) * turned + own % turned;
    p.dst.v[to] = uint16_t(half_nearest(beyond == 0 ? value : 0.0));
}

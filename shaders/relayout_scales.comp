// Spreads scales that rows and columns of a matrix share over the units of its quantised form, and counts those of which a
// weight would be too large, or that are not finite. One invocation owns a unit.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_GOOGLE_include_directive : require

#include "include/out_of_range.glsl"
#include "quantize/half_nearest.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(constant_id = 1) const uint SOURCE = 0;  // 0: single precision, 1: half, 2: bfloat16, 3: bytes that choose from `levels`
layout(constant_id = 2) const uint UNIT_BYTES = 4;  // of a unit's scale: 4 is one in single precision
layout(constant_id = 3) const bool IS_HALF = false;  // half precision, in the first two of these bytes
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Words { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) readonly restrict buffer Halves { uint16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) restrict buffer Singles { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer HalfScales { uint16_t v[]; };

layout(push_constant, scalar) uniform P {
    Words src;            // values by row_block rows and column_block columns, or by columns and rows
    Singles levels;       // (256), if SOURCE is 3; what they are multiplied by follows, one for nested_block values each
    HalfScales dst;       // (rows, row_units) from the first row on
    Counter out_of_range;  // (1) or null
    uint skipped;         // values before the first of `src`
    uint row_step;        // values from one row_block to the next
    uint column_step;     // and from one column_block to the next
    uint row_block;
    uint column_block;
    uint first_row;       // of the file's rows, and so many from there
    uint rows;
    uint first_unit;      // of a row's units, and so many from there
    uint units;
    uint row_units;       // of the whole matrix
    uint unit;            // columns of a unit
    float factor;
    uint nested_block;    // if SOURCE is 3
    float nested_offset;  // likewise: is added to each
    float largest_code;
} p;

const float LARGEST = 65000.0;

float value_at(uint whole) {
    const uint index = whole - p.skipped;
    if (SOURCE == 3) {
        const uint choice = p.src.v[index / 4] >> 8 * (index % 4) & 0xffu;
        return p.levels.v[choice] * p.levels.v[256 + whole / p.nested_block] + p.nested_offset;
    }
    if (SOURCE == 0) {
        return uintBitsToFloat(p.src.v[index]);
    }
    const uint bits = uint(Halves(p.src).v[index]);
    return SOURCE == 1 ? unpackHalf2x16(bits).x : uintBitsToFloat(bits << 16);
}

void main() {
    const uint index = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (index >= p.rows * p.units) {
        return;
    }
    const uint row = index / p.units;
    const uint unit = p.first_unit + index % p.units;
    const uint at = (p.first_row + row) / p.row_block * p.row_step + unit * p.unit / p.column_block * p.column_step;
    float scale = value_at(at);
    const uint beyond = num_beyond(vec4(scale, vec3(0.0)), floatBitsToUint(LARGEST / p.largest_code));
    count_out_of_range(p.out_of_range, beyond);
    if (beyond != 0) {
        scale = 0.0;
    }
    const uint to = row * p.row_units + unit;
    if (IS_HALF) {
        p.dst.v[to * (UNIT_BYTES / 2)] = uint16_t(half_nearest(scale * p.factor));
    } else {
        Singles(p.dst).v[to] = scale * p.factor;
    }
}

// Quantises contiguous weights on their way to the device, and counts those that are too large or not finite.
// One invocation owns a unit, the elements of one scale.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include FORMAT
#include "include/code_words.glsl"
#include SCHEME
#include "include/out_of_range.glsl"

const uint LARGEST = 0x477de800u;  // the bits of 65000.0; a scale is a half

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

layout(push_constant, scalar) uniform P {
    Weights src;    // (units, UNIT)
    Quants quants;  // (units, UNIT)
    High high;      // not written
    Scales scales;  // (units) f16
    Counter out_of_range;  // (1) or null
    uint units;
} p;

void main() {
    const uint unit = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (unit >= p.units) {
        return;
    }
    vec4 values[UNIT / 4];
    [[unroll]] for (uint i = 0; i < UNIT / 8; i++) {
        unpack8(fetch8(p.src, unit * (UNIT / 8) + i), values[2 * i], values[2 * i + 1]);
    }
    uint out_of_range = 0;
    [[unroll]] for (uint i = 0; i < UNIT / 4; i++) {
        out_of_range += num_beyond(values[i], LARGEST);
        values[i] = clamp(values[i], -65000.0, 65000.0);
    }
    count_out_of_range(p.out_of_range, out_of_range);
    const uint scale_bits = chosen_scale(values);
    const float scale = unpackHalf2x16(scale_bits).x;
    const float factor = scale == 0.0 ? 0.0 : 1.0 / scale;
    [[unroll]] for (uint block = 0; block < UNIT / 32; block++) {
        uint words[8];
        [[unroll]] for (uint w = 0; w < 8; w++) {
            words[w] = code_word(codes_of(values[block * 8 + w] * factor));
        }
        store_codes(p.quants, p.high, unit * (UNIT / 32) + block, words);
    }
    p.scales.v[unit] = uint16_t(scale_bits);
}

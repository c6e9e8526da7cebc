// Brings codes that lie in a file row by row into the planes that kernels read, and counts those that are no numbers. One
// invocation owns 32 elements.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include "include/code_words.glsl"
#include "include/out_of_range.glsl"
#include CODES

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(push_constant, scalar) uniform P {
    Source src;     // (blocks, 32) codes
    Quants quants;  // (blocks)
    High high;      // (blocks)
    Counter out_of_range;  // (1) or null
    uint blocks;
} p;

void main() {
    const uint block = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (block >= p.blocks) {
        return;
    }
    uint words[8];
    uint out_of_range = 0;
    for (uint w = 0; w < 8; w++) {
        const ivec4 codes = four_codes(p.src, block, w);
        [[unroll]] for (uint i = 0; i < 4; i++) {
            out_of_range += is_number(codes[i]) ? 0 : 1;
        }
        words[w] = code_word(codes);
    }
    count_out_of_range(p.out_of_range, out_of_range);
    store_codes(p.quants, p.high, block, words);
}

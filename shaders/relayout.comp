// Spreads GGUF's blocks over the planes that kernels read, every quantised value as it was. One invocation owns 32 elements.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include "relayout/source.glsl"
#include "include/code_words.glsl"
#include TYPE

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(push_constant, scalar) uniform P {
    Source src;     // (blocks, 32) in the type's own blocks
    Quants quants;  // (blocks)
    High high;      // (blocks)
    Scales scales;  // (blocks)
    uint blocks;
} p;

void main() {
    const uint block = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (block >= p.blocks) {
        return;
    }
    uint words[8];
    for (uint w = 0; w < 8; w++) {
        ivec4 codes;
        [[unroll]] for (uint i = 0; i < 4; i++) {
            codes[i] = int(code(p.src, block, 4 * w + i));
        }
        words[w] = code_word(codes);
    }
    store_codes(p.quants, p.high, block, words);
    store_scale(p.src, p.scales, block);
}

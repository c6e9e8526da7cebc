// Brings activations into blocks of 32 signed bytes: x ≈ code * scale, where scale is a 127th of the block's largest
// magnitude, in single precision. An element is off by half a scale at most. One invocation owns one block.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include "include/code_words.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Input { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Codes { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly restrict buffer Scales { uvec2 v[]; };

layout(push_constant, scalar) uniform P {
    Input x;       // (blocks, 32)
    Codes codes;   // (blocks, 32) bytes
    Scales scale;  // (blocks): the scale, then two sums of 16 codes, 16 bits each
    uint blocks;
} p;

void main() {
    const uint block = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP + gl_LocalInvocationID.x;
    if (block >= p.blocks) {
        return;
    }
    vec4 values[8];
    vec4 largest = vec4(0.0);
    [[unroll]] for (uint i = 0; i < 8; i++) {
        values[i] = p.x.v[block * 8 + i];
        largest = max(largest, abs(values[i]));
    }
    const float magnitude = max(max(largest.x, largest.y), max(largest.z, largest.w));
    // What is smaller than any activation that matters would divide to infinity.
    const float factor = magnitude > 1e-30 ? 127.0 / magnitude : 0.0;
    uint words[8];
    ivec2 sums = ivec2(0);
    [[unroll]] for (uint i = 0; i < 8; i++) {
        const ivec4 codes = ivec4(roundEven(values[i] * factor));
        words[i] = code_word(codes);
        sums[i / 4] += codes.x + codes.y + codes.z + codes.w;
    }
    p.codes.v[2 * block] = uvec4(words[0], words[1], words[2], words[3]);
    p.codes.v[2 * block + 1] = uvec4(words[4], words[5], words[6], words[7]);
    p.scale.v[block] = uvec2(floatBitsToUint(magnitude / 127.0), (sums.x & 0xffff) | sums.y << 16);
}

// Brings activations into blocks of 32 signed bytes: x ≈ code * scale, where scale is a 127th of the block's largest
// magnitude, in single precision. An element is off by half a scale at most. Eight neighbouring lanes of a subgroup work on a
// block, four elements each. Read by include/block_dot.glsl.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#include "include/code_words.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer BlockCodes { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly restrict buffer BlockScales { uvec2 v[]; };

// Writes the four elements of a row that begin at 4 * quad; the row has `blocks` blocks.
void store_quad(BlockCodes codes, BlockScales scales, uint row, uint blocks, uint quad, vec4 values) {
    const vec4 sizes = abs(values);
    float magnitude = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 1));
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 2));
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 4));
    // What is smaller than any activation that matters would divide to infinity.
    const float factor = magnitude > 1e-30 ? 127.0 / magnitude : 0.0;
    const ivec4 rounded = ivec4(roundEven(values * factor));
    int sum = rounded.x + rounded.y + rounded.z + rounded.w;
    sum += subgroupShuffleXor(sum, 1);
    sum += subgroupShuffleXor(sum, 2);
    const int other_sum = subgroupShuffleXor(sum, 4);
    const uint block = quad / 8;
    const uint part = quad % 8;
    codes.v[((2 * row + part / 4) * blocks + block) * 4 + part % 4] = code_word(rounded);
    if (part == 0) {  // the scale, then two sums of 16 codes, 16 bits each
        scales.v[row * blocks + block] = uvec2(floatBitsToUint(magnitude / 127.0), (sum & 0xffff) | other_sum << 16);
    }
}

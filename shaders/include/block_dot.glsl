// Products of quantised weights with activations that are blocks of 32 bytes, as include/block_store.glsl writes them.
#extension GL_EXT_integer_dot_product : require

// (tokens, 2, blocks) groups of 16 bytes: the blocks' first halves lie side by side, and so do the second.
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer InputCodes { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer InputScales { uvec2 v[]; };

struct InputBlock {
    uvec4 first;
    uvec4 second;
    float scale;
    ivec2 sums;  // of the groups' codes
};

InputBlock fetch_input(InputCodes codes, InputScales scales, uint token, uint blocks, uint block) {
    const u64vec2 first = codes.v[2 * token * blocks + block];
    const u64vec2 second = codes.v[(2 * token + 1) * blocks + block];
    const uvec2 scale = scales.v[token * blocks + block];
    return InputBlock(uvec4(unpack32(first.x), unpack32(first.y)), uvec4(unpack32(second.x), unpack32(second.y)),
                      uintBitsToFloat(scale.x), ivec2(bitfieldExtract(int(scale.y), 0, 16), int(scale.y) >> 16));
}

// Adds the products to a sum, one after the other: a device that has a dot product with an addend needs nothing else.
int group_dot(uvec4 weights, uvec4 inputs, int sum) {
    [[unroll]] for (uint w = 0; w < 4; w++) {
        sum += dotPacked4x8EXT(int(weights[w]), int(inputs[w]));
    }
    return sum;
}

float offset_sum(float offset, ivec2 sums) {
    return offset * float(sums.x + sums.y);
}

float offset_sum(vec2 offset, ivec2 sums) {
    return offset.x * float(sums.x) + offset.y * float(sums.y);
}

#ifdef FLOAT_CODES
// Four activations in the order of the elements.
vec4 input_values(uint word) {
    const int codes = int(word);
    return vec4(bitfieldExtract(codes, 0, 8), bitfieldExtract(codes, 16, 8), bitfieldExtract(codes, 8, 8),
                bitfieldExtract(codes, 24, 8));
}

float float_dot(uvec4 weights, uvec4 inputs) {
    float sum = 0.0;
    [[unroll]] for (uint w = 0; w < 4; w++) {
        sum += dot(code_values(weights[w]), input_values(inputs[w]));
    }
    return sum;
}

float block_dot(uvec4 first, uvec4 second, vec2 scale, Offset offset, InputBlock x) {
    return scale.x * x.scale * (float_dot(first, x.first) + float_dot(second, x.second));
}
#else
float block_dot(uvec4 first, uvec4 second, vec2 scale, Offset offset, InputBlock x) {
    const int all_sums = x.sums.x + x.sums.y;
    float sum;
    if (GROUPS_DIFFER) {
        sum = scale.x * float(group_dot(first, x.first, -ZERO * x.sums.x)) +
              scale.y * float(group_dot(second, x.second, -ZERO * x.sums.y));
    } else {
        sum = scale.x * float(group_dot(second, x.second, group_dot(first, x.first, -ZERO * all_sums)));
    }
    if (HAS_OFFSET) {
        sum += offset_sum(offset, x.sums);
    }
    return sum * x.scale;
}
#endif

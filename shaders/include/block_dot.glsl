// Products of quantised weights with activations that quantize_activations has brought into blocks of 32 bytes.
#extension GL_EXT_integer_dot_product : require

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer InputCodes { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer InputScales { uvec2 v[]; };

struct InputBlock {
    uvec4 first;
    uvec4 second;
    float scale;
    ivec2 sums;  // of the groups' codes
};

InputBlock fetch_input(InputCodes codes, InputScales scales, uint block) {
    const u64vec2 first = codes.v[2 * block];
    const u64vec2 second = codes.v[2 * block + 1];
    const uvec2 scale = scales.v[block];
    return InputBlock(uvec4(unpack32(first.x), unpack32(first.y)), uvec4(unpack32(second.x), unpack32(second.y)),
                      uintBitsToFloat(scale.x), ivec2(bitfieldExtract(int(scale.y), 0, 16), int(scale.y) >> 16));
}

int group_dot(uvec4 weights, uvec4 inputs) {
    return dotPacked4x8EXT(int(weights.x), int(inputs.x)) + dotPacked4x8EXT(int(weights.y), int(inputs.y)) +
           dotPacked4x8EXT(int(weights.z), int(inputs.z)) + dotPacked4x8EXT(int(weights.w), int(inputs.w));
}

float block_dot(uvec4 first, uvec4 second, vec2 scale, float offset, InputBlock x) {
    const int low = group_dot(first, x.first) - ZERO * x.sums.x;
    const int high = group_dot(second, x.second) - ZERO * x.sums.y;
    float sum = GROUPS_DIFFER ? scale.x * float(low) + scale.y * float(high) : scale.x * float(low + high);
    if (HAS_OFFSET) {
        sum += offset * float(x.sums.x + x.sums.y);
    }
    return sum * x.scale;
}

// Codes of 8 bits that 4 bits choose from TABLE, 16 signed bytes in the order of their choices: 16 bytes a block.

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Quants { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer High { uint v[]; };  // not read

#define Codes u64vec2

Codes fetch_codes(Quants quants, High high, uint block) {
    return quants.v[block];
}

// Looks up the four nibbles that lie in the lower halves of the bytes.
uvec4 looked_up(uvec4 nibbles) {
    uvec4 result = uvec4(0);
    [[unroll]] for (uint i = 0; i < 32; i += 8) {
        const uvec4 index = (nibbles >> i) & 15u;
        const uvec4 lower = mix(uvec4(TABLE.x), uvec4(TABLE.y), greaterThanEqual(index, uvec4(4)));
        const uvec4 upper = mix(uvec4(TABLE.z), uvec4(TABLE.w), greaterThanEqual(index, uvec4(12)));
        const uvec4 word = mix(lower, upper, greaterThanEqual(index, uvec4(8)));
        result |= ((word >> ((index & 3u) * 8u)) & 0xffu) << i;
    }
    return result;
}

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    const uvec2 low = unpack32(codes.x);
    const uvec2 up = unpack32(codes.y);
    first = looked_up(uvec4(low, low >> 4));
    second = looked_up(uvec4(up, up >> 4));
}

#include "quant/codes/halves.glsl"

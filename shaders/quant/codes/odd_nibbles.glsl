// Codes of 5 bits of which the lowest is set: 16 bytes a block for the other four.

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Quants { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer High { uint v[]; };  // not read

#define Codes u64vec2

Codes fetch_codes(Quants quants, High high, uint block) {
    return quants.v[block];
}

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    const uvec2 low = unpack32(codes.x);
    const uvec2 up = unpack32(codes.y);
    first = (uvec4(low << 1, low >> 3) & 0x1e1e1e1eu) | 0x01010101u;
    second = (uvec4(up << 1, up >> 3) & 0x1e1e1e1eu) | 0x01010101u;
}

#include "quant/codes/halves.glsl"

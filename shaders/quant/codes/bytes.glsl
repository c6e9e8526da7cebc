// Codes of 8 bits, signed: 32 bytes a block.

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Quants { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer High { uint v[]; };  // not read

struct Codes {
    u64vec2 first;
    u64vec2 second;
};

Codes fetch_codes(Quants quants, High high, uint block) {
    return Codes(quants.v[2 * block], quants.v[2 * block + 1]);
}

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    first = uvec4(unpack32(codes.first.x), unpack32(codes.first.y));
    second = uvec4(unpack32(codes.second.x), unpack32(codes.second.y));
}

#include "quant/codes/halves.glsl"

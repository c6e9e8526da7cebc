// Codes of 2 bits: 8 bytes a block. Bits 8 i + 2 w and the next of a group's word belong to byte i of its code word w.

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Quants { uint64_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer High { uint v[]; };  // not read

#define Codes uint64_t

Codes fetch_codes(Quants quants, High high, uint block) {
    return quants.v[block];
}

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    const uvec2 words = unpack32(codes);
    first = uvec4(words.x, words.x >> 2, words.x >> 4, words.x >> 6) & 0x03030303u;
    second = uvec4(words.y, words.y >> 2, words.y >> 4, words.y >> 6) & 0x03030303u;
}

#include "quant/codes/halves.glsl"

// Codes of 3 bits: 8 bytes a block for the lower two, a word for the third. Bits 8 i + 2 w and the next of a group's word belong
// to byte i of its code word w, bit 8 i + w of the third's word to byte i of the block's code word w.

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Quants { uint64_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer High { uint v[]; };

struct Codes {
    uint64_t low;
    uint high;
};

Codes fetch_codes(Quants quants, High high, uint block) {
    return Codes(quants.v[block], high.v[block]);
}

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    const uvec2 low = unpack32(codes.low);
    const uint high = codes.high;
    const uvec4 first_high = uvec4(high << 2, high << 1, high, high >> 1);
    const uvec4 second_high = uvec4(high >> 2, high >> 3, high >> 4, high >> 5);
    first = (uvec4(low.x, low.x >> 2, low.x >> 4, low.x >> 6) & 0x03030303u) | (first_high & 0x04040404u);
    second = (uvec4(low.y, low.y >> 2, low.y >> 4, low.y >> 6) & 0x03030303u) | (second_high & 0x04040404u);
}

#include "quant/codes/halves.glsl"

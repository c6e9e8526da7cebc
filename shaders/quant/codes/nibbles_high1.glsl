// Codes of 5 bits: 16 bytes a block for the lower four, a word for the fifth. Bit 8 i + w of that word belongs to byte i
// of the block's code word w.

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Quants { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer High { uint v[]; };

struct Codes {
    u64vec2 low;
    uint high;
};

Codes fetch_codes(Quants quants, High high, uint block) {
    return Codes(quants.v[block], high.v[block]);
}

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    const uvec2 low = unpack32(codes.low.x);
    const uvec2 up = unpack32(codes.low.y);
    const uint high = codes.high;
    const uvec4 first_high = uvec4(high << 4, high << 3, high << 2, high << 1);
    const uvec4 second_high = uvec4(high, high >> 1, high >> 2, high >> 3);
    first = (uvec4(low, low >> 4) & 0x0f0f0f0fu) | (first_high & 0x10101010u);
    second = (uvec4(up, up >> 4) & 0x0f0f0f0fu) | (second_high & 0x10101010u);
}

#include "quant/codes/halves.glsl"

// Codes of 6 bits: 16 bytes a block for the lower four, two words for the others, one a group. Bits 8 i + 2 w and the next
// of a group's word belong to byte i of its code word w.

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Quants { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer High { uint64_t v[]; };

struct Codes {
    u64vec2 low;
    uint64_t high;
};

Codes fetch_codes(Quants quants, High high, uint block) {
    return Codes(quants.v[block], high.v[block]);
}

uvec4 spread(uint high) {
    return uvec4(high << 4, high << 2, high, high >> 2) & 0x30303030u;
}

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    const uvec2 low = unpack32(codes.low.x);
    const uvec2 up = unpack32(codes.low.y);
    const uvec2 high = unpack32(codes.high);
    first = (uvec4(low, low >> 4) & 0x0f0f0f0fu) | spread(high.x);
    second = (uvec4(up, up >> 4) & 0x0f0f0f0fu) | spread(high.y);
}

#include "quant/codes/halves.glsl"

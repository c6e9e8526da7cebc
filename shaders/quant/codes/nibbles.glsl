// Codes of 4 bits: 16 bytes a block.

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Quants { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer High { uint v[]; };  // not read

#define Codes u64vec2

Codes fetch_codes(Quants quants, High high, uint block) {
    return quants.v[block];
}

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    const uvec2 low = unpack32(codes.x);
    const uvec2 up = unpack32(codes.y);
    first = uvec4(low, low >> 4) & 0x0f0f0f0fu;
    second = uvec4(up, up >> 4) & 0x0f0f0f0fu;
}

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

// Two codes, in the lower nibbles of a word's halves, as halves less ZERO: a nibble c under the exponent of 1024 is 1024 + c.
f16vec2 low_halves(uint codes) {
    return unpackFloat2x16((codes & 0x000f000fu) | 0x64006400u) - f16vec2(float16_t(1024 + ZERO));
}

// Two codes, 16 times as much as nibbles that begin at bit 4: 1024 + 16 c, of which all steps are exact.
f16vec2 high_halves(uint codes) {
    return fma(unpackFloat2x16((codes & 0x00f000f0u) | 0x64006400u), f16vec2(float16_t(0.0625)),
               f16vec2(float16_t(-64 - ZERO)));
}

// (code - ZERO) of four weights, in the order of the elements, as halves.
void quad_halves(Codes codes, uint quad, out f16vec2 low, out f16vec2 high) {
    const uint word = unpack32(quad < 4 ? codes.x : codes.y)[quad % 2];
    if (quad % 4 < 2) {
        low = low_halves(word);
        high = low_halves(word >> 8);
    } else {
        low = high_halves(word);
        high = high_halves(word >> 8);
    }
}

// Codes of 8 bits in E4M3: 32 bytes a block. Seven bits further up a code is a half, subnormal ones too, and the 256th part
// of what it stands for; scales have the 256.
#define FLOAT_CODES

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

// The bits of two halves, of the codes in the lower bytes of a word's halves.
uint half_bits(uint codes) {
    return (codes & 0x007f007fu) << 7 | (codes & 0x00800080u) << 8;
}

// What a word's four codes stand for, in the order of the elements.
vec4 code_values(uint word) {
    return vec4(unpackHalf2x16(half_bits(word)), unpackHalf2x16(half_bits(word >> 8)));
}

void quad_halves(Codes codes, uint quad, out f16vec2 low, out f16vec2 high) {
    uvec4 first, second;
    unpack_codes(codes, first, second);
    const uint word = (quad < 4 ? first : second)[quad % 4];
    low = unpackFloat2x16(half_bits(word));
    high = unpackFloat2x16(half_bits(word >> 8));
}

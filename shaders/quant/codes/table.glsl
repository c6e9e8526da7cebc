// Codes of 8 bits that 4 bits choose from TABLE, 16 signed bytes in the order of their choices: 16 bytes a block.
//
// To look 32 choices up one by one takes ten instructions each. Here they go all at once, as planes of bits: word b of a
// block has bit b of each choice, a Boolean function of the four makes each plane of the codes, and eight planes become bytes.
#include "quant/codes/choices.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Quants { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer High { uint v[]; };  // not read

#define Codes u64vec2

Codes fetch_codes(Quants quants, High high, uint block) {
    return quants.v[block];
}

// Bit c of TRUTHS(k) is bit k of the code that c chooses.
#define TRUTHS_OF(word, k) \
    (word >> k & 1u | (word >> (8 + k) & 1u) << 1 | (word >> (16 + k) & 1u) << 2 | (word >> (24 + k) & 1u) << 3)
#define TRUTHS(k) \
    (TRUTHS_OF(TABLE.x, k) | TRUTHS_OF(TABLE.y, k) << 4 | TRUTHS_OF(TABLE.z, k) << 8 | TRUTHS_OF(TABLE.w, k) << 12)

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    const uvec4 planes = uvec4(unpack32(codes.x), unpack32(codes.y));
    const uvec4 low = uvec4(of_four(TRUTHS(0), planes), of_four(TRUTHS(1), planes), of_four(TRUTHS(2), planes),
                            of_four(TRUTHS(3), planes));
    const uvec4 high = uvec4(of_four(TRUTHS(4), planes), of_four(TRUTHS(5), planes), of_four(TRUTHS(6), planes),
                             of_four(TRUTHS(7), planes));
    bytes_of_planes(low, high, first, second);
}

#include "quant/codes/halves.glsl"

// Codes of 8 bits that 4 bits choose from TABLE, 16 signed bytes in the order of their choices: 16 bytes a block.
//
// To look 32 choices up one by one takes ten instructions each. Here they go all at once, as planes of bits: word b of a
// block has bit b of each choice, a Boolean function of the four makes each plane of the codes, and eight planes become bytes.
#include "include/bit_planes.glsl"

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

uint if_else(uint wanted, uint set, uint unset) {
    return (set & wanted) | (unset & ~wanted);
}

// The function of two planes with these truths, bit a + 2 b for the values a and b. They are constants: no switch is left of it.
uint of_two(uint truths, uint a, uint b) {
    switch (truths & 15u) {
        case 0: return 0u;
        case 1: return ~(a | b);
        case 2: return a & ~b;
        case 3: return ~b;
        case 4: return b & ~a;
        case 5: return ~a;
        case 6: return a ^ b;
        case 7: return ~(a & b);
        case 8: return a & b;
        case 9: return ~(a ^ b);
        case 10: return a;
        case 11: return a | ~b;
        case 12: return b;
        case 13: return b | ~a;
        case 14: return a | b;
        default: return ~0u;
    }
}

uint of_three(uint truths, uvec4 planes) {
    return if_else(planes.z, of_two(truths >> 4, planes.x, planes.y), of_two(truths, planes.x, planes.y));
}

uint of_four(uint truths, uvec4 planes) {
    return if_else(planes.w, of_three(truths >> 8, planes), of_three(truths, planes));
}

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    const uvec4 planes = uvec4(unpack32(codes.x), unpack32(codes.y));
    const uvec4 low = uvec4(of_four(TRUTHS(0), planes), of_four(TRUTHS(1), planes), of_four(TRUTHS(2), planes),
                            of_four(TRUTHS(3), planes));
    const uvec4 high = uvec4(of_four(TRUTHS(4), planes), of_four(TRUTHS(5), planes), of_four(TRUTHS(6), planes),
                             of_four(TRUTHS(7), planes));
    uvec2 lower[2] = uvec2[2](low.xy, low.zw);
    uvec2 upper[2] = uvec2[2](high.xy, high.zw);
    exchange(lower[0], upper[0], 4, 0x0f0f0f0fu);
    exchange(lower[1], upper[1], 4, 0x0f0f0f0fu);
    const uvec4 even = transposed(uvec4(lower[0], lower[1]));  // of choices in the lower nibbles of words
    const uvec4 odd = transposed(uvec4(upper[0], upper[1]));
    first = uvec4(even.xy, odd.xy);
    second = uvec4(even.zw, odd.zw);
}

#include "quant/codes/halves.glsl"

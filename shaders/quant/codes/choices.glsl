// Boolean functions of planes of bits, of which codes are made: word b of some planes has bit b of each of 32 choices.
#include "include/bit_planes.glsl"

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

// Makes bytes of the planes of their lower four bits and of their upper four.
void bytes_of_planes(uvec4 low, uvec4 high, out uvec4 first, out uvec4 second) {
    uvec2 lower[2] = uvec2[2](low.xy, low.zw);
    uvec2 upper[2] = uvec2[2](high.xy, high.zw);
    exchange(lower[0], upper[0], 4, 0x0f0f0f0fu);
    exchange(lower[1], upper[1], 4, 0x0f0f0f0fu);
    const uvec4 even = transposed(uvec4(lower[0], lower[1]));  // of choices in the lower nibbles of words
    const uvec4 odd = transposed(uvec4(upper[0], upper[1]));
    first = uvec4(even.xy, odd.xy);
    second = uvec4(even.zw, odd.zw);
}

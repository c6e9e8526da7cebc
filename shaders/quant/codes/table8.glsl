// Codes of 8 bits that 3 bits choose from TABLE, 8 signed bytes in the order of their choices: 8 bytes a block for the lower two
// planes of bits, a word for the third. See table.glsl.
#include "quant/codes/choices.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Quants { uint64_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer High { uint v[]; };

struct Codes {
    uint64_t low;
    uint high;
};

Codes fetch_codes(Quants quants, High high, uint block) {
    return Codes(quants.v[block], high.v[block]);
}

// Bit c of TRUTHS(k) is bit k of the code that c chooses.
#define TRUTHS_OF(word, k) \
    (word >> k & 1u | (word >> (8 + k) & 1u) << 1 | (word >> (16 + k) & 1u) << 2 | (word >> (24 + k) & 1u) << 3)
#define TRUTHS(k) (TRUTHS_OF(TABLE.x, k) | TRUTHS_OF(TABLE.y, k) << 4)

void unpack_codes(Codes codes, out uvec4 first, out uvec4 second) {
    const uvec4 planes = uvec4(unpack32(codes.low), codes.high, 0u);
    const uvec4 low = uvec4(of_three(TRUTHS(0), planes), of_three(TRUTHS(1), planes), of_three(TRUTHS(2), planes),
                            of_three(TRUTHS(3), planes));
    const uvec4 high = uvec4(of_three(TRUTHS(4), planes), of_three(TRUTHS(5), planes), of_three(TRUTHS(6), planes),
                             of_three(TRUTHS(7), planes));
    bytes_of_planes(low, high, first, second);
}

#include "quant/codes/halves.glsl"

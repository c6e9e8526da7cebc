// IQ1_M: blocks of 256, 32 bytes that choose eight elements each from a codebook, for each a nibble with three more bits of its choice
// and whether an eighth is taken off or added, then four times 16 bits: 3 bits of scale for each of four groups of 16, and four of the
// half-precision scale's.
const uint BLOCK_BYTES = 56;
const uint UPPER = 32;
const uint GROUP_SCALES = 48;
#include "quant/pack/planes3.glsl"
#include "relayout/grids/iq1.glsl"
#include "relayout/grid.glsl"

uint code(Source src, uint block, uint element) {
    const uint from = block / 8 * BLOCK_BYTES;
    const uint eight = block % 8 * 4 + element / 8;
    const uint upper = byte_at(src, from + UPPER + eight / 2) >> (eight % 2 * 4) & 15u;
    return grid_element(byte_at(src, from + eight) | (upper & 7u) << 8, element % 8) | upper >> 3 << 2;
}

uint shared_scale(Source src, uint block) {
    uint bits = 0;
    for (uint i = 0; i < 4; i++) {
        bits |= word_at(src, block / 8 * BLOCK_BYTES + GROUP_SCALES + 2 * i) >> 12 << (4 * i);
    }
    return bits;
}

uint scale_pair(Source src, uint block) {
    const uint bits = word_at(src, block / 8 * BLOCK_BYTES + GROUP_SCALES + block % 8 / 2 * 2) >> (block % 2 * 6);
    return (bits & 7u) | (bits >> 3 & 7u) << 4;
}

#include "relayout/odd_nibbles.glsl"

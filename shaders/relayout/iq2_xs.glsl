// IQ2_XS: blocks of 256, a half-precision scale, for each eight elements 9 bits that choose magnitudes from a codebook with 7 bits of
// signs, then 4 bits of scale for each group of 16.
const uint BLOCK_BYTES = 74;
const uint EIGHTS = 2;
const uint GROUP_SCALES = 66;
#include "quant/pack/planes3.glsl"
#include "relayout/grids/iq2_xs.glsl"
#include "relayout/grid.glsl"
#include "relayout/seven_signs.glsl"

uint code(Source src, uint block, uint element) {
    const uint eight = block % 8 * 4 + element / 8;
    const uint word = word_at(src, block / 8 * BLOCK_BYTES + EIGHTS + 2 * eight);
    return grid_element(word & 511u, element % 8) | sign_of(word >> 9, element % 8) << 2;
}

uint shared_scale(Source src, uint block) {
    return word_at(src, block / 8 * BLOCK_BYTES);
}

uint scale_pair(Source src, uint block) {
    return byte_at(src, block / 8 * BLOCK_BYTES + GROUP_SCALES + block % 8);
}

#include "relayout/odd_nibbles.glsl"

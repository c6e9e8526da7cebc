// IQ2_S: blocks of 256, a half-precision scale, for each eight elements a byte that chooses magnitudes from a codebook, for each eight
// a byte of signs, for each run of 32 elements a byte with two more bits of its four choices, then 4 bits of scale for each group of 16.
const uint BLOCK_BYTES = 82;
const uint CHOICES = 2;
const uint SIGNS = 34;
const uint UPPER = 66;
const uint GROUP_SCALES = 74;
#include "quant/pack/planes3.glsl"
#include "relayout/grids/iq2_s.glsl"
#include "relayout/grid.glsl"

uint code(Source src, uint block, uint element) {
    const uint from = block / 8 * BLOCK_BYTES;
    const uint place = block % 8 * 4 + element / 8;
    const uint upper = byte_at(src, from + UPPER + block % 8) >> (element / 8 * 2) & 3u;
    const uint sign_bit = byte_at(src, from + SIGNS + place) >> element % 8 & 1u;
    return grid_element(byte_at(src, from + CHOICES + place) | upper << 8, element % 8) | sign_bit << 2;
}

uint shared_scale(Source src, uint block) {
    return word_at(src, block / 8 * BLOCK_BYTES);
}

uint scale_pair(Source src, uint block) {
    return byte_at(src, block / 8 * BLOCK_BYTES + GROUP_SCALES + block % 8);
}

#include "relayout/odd_nibbles.glsl"

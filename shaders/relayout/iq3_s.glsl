// IQ3_S: blocks of 256, a half-precision scale, 64 bytes that choose four magnitudes each from a codebook, for each run of 32 elements
// a byte with one more bit of its eight choices, for each eight elements a byte of signs, then 4 bits of scale for each run.
const uint BLOCK_BYTES = 110;
const uint CHOICES = 2;
const uint UPPER = 66;
const uint SIGNS = 74;
const uint RUN_SCALES = 106;
#include "quant/pack/nibbles.glsl"
#include "relayout/grids/iq3_s.glsl"
#include "relayout/grid.glsl"
#include "relayout/ordered.glsl"

uint code(Source src, uint block, uint element) {
    const uint from = block / 8 * BLOCK_BYTES;
    const uint four = element / 4;
    const uint upper = byte_at(src, from + UPPER + block % 8) >> four & 1u;
    const uint sign_bit = byte_at(src, from + SIGNS + block % 8 * 4 + element / 8) >> element % 8 & 1u;
    const uint choice = byte_at(src, from + CHOICES + block % 8 * 8 + four) | upper << 8;
    return ordered(grid_element(choice, element % 4), sign_bit);
}

uint scale_nibble(Source src, uint block) {
    return byte_at(src, block / 8 * BLOCK_BYTES + RUN_SCALES + block % 8 / 2) >> (block % 2 * 4) & 15u;
}

#include "relayout/odd_sixes.glsl"

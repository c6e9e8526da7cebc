// IQ3_XXS: blocks of 256, a half-precision scale, 64 bytes that choose four magnitudes each from a codebook, then for each run of 32
// elements a word: 7 bits of signs for each eight, and 4 bits of scale.
const uint BLOCK_BYTES = 98;
const uint CHOICES = 2;
const uint RUNS = 66;
#include "quant/pack/planes.glsl"
#include "relayout/grids/iq3_xxs.glsl"
#include "relayout/grid.glsl"
#include "relayout/seven_signs.glsl"
#include "relayout/ordered.glsl"

uint code(Source src, uint block, uint element) {
    const uint from = block / 8 * BLOCK_BYTES;
    const uint run = from + RUNS + block % 8 * 4;
    const uint signs = (word_at(src, run) | word_at(src, run + 2) << 16) >> (element / 8 * 7) & 127u;
    const uint magnitude = grid_element(byte_at(src, from + CHOICES + block % 8 * 8 + element / 4), element % 4);
    return ordered(magnitude, sign_of(signs, element % 8));
}

uint scale_nibble(Source src, uint block) {
    return word_at(src, block / 8 * BLOCK_BYTES + RUNS + block % 8 * 4 + 2) >> 12;
}

#include "relayout/odd_sixes.glsl"

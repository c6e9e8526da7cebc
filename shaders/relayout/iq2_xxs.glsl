// IQ2_XXS: blocks of 256, a half-precision scale, then for each run of 32 elements 4 bytes that choose eight magnitudes each from a
// codebook, and a word: 7 bits of signs for each eight, and 4 bits of scale.
const uint BLOCK_BYTES = 66;
const uint RUNS = 2;
#include "quant/pack/planes3.glsl"
#include "relayout/grids/iq2_xxs.glsl"
#include "relayout/grid.glsl"
#include "relayout/seven_signs.glsl"

uint run_at(uint block) {
    return block / 8 * BLOCK_BYTES + RUNS + block % 8 * 8;
}

uint code(Source src, uint block, uint element) {
    const uint from = run_at(block);
    const uint eight = element / 8;
    const uint signs = (word_at(src, from + 4) | word_at(src, from + 6) << 16) >> (eight * 7) & 127u;
    return grid_element(byte_at(src, from + eight), element % 8) | sign_of(signs, element % 8) << 2;
}

uint shared_scale(Source src, uint block) {
    return word_at(src, block / 8 * BLOCK_BYTES);
}

uint scale_pair(Source src, uint block) {
    const uint scale = word_at(src, run_at(block) + 6) >> 12;
    return scale | scale << 4;
}

#include "relayout/odd_nibbles.glsl"

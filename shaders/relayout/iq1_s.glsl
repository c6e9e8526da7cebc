// IQ1_S: blocks of 256, a half-precision scale, 32 bytes that choose eight elements each from a codebook, then for each run of 32
// elements 16 bits: three more of each of its four choices, 3 bits of scale, and whether an eighth is taken off or added.
const uint BLOCK_BYTES = 50;
const uint CHOICES = 2;
const uint RUNS = 34;
#include "quant/pack/planes3.glsl"
#include "relayout/grids/iq1.glsl"
#include "relayout/grid.glsl"

uint run_bits(Source src, uint block) {
    return word_at(src, block / 8 * BLOCK_BYTES + RUNS + block % 8 * 2);
}

uint code(Source src, uint block, uint element) {
    const uint bits = run_bits(src, block);
    const uint eight = element / 8;
    const uint low = byte_at(src, block / 8 * BLOCK_BYTES + CHOICES + block % 8 * 4 + eight);
    return grid_element(low | (bits >> (eight * 3) & 7u) << 8, element % 8) | bits >> 15 << 2;
}

uint shared_scale(Source src, uint block) {
    return word_at(src, block / 8 * BLOCK_BYTES);
}

uint scale_pair(Source src, uint block) {
    const uint scale = run_bits(src, block) >> 12 & 7u;
    return scale | scale << 4;
}

#include "relayout/odd_nibbles.glsl"

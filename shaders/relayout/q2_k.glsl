// Q2_K: blocks of 256, a byte of scale and offset for each group of 16, 64 bytes of pairs of bits, a half-precision scale and offset.
// Each half of the block has 32 bytes of pairs.
const uint BLOCK_BYTES = 84;
const uint PAIRS = 16;
const uint SHARED = 80;
#include "quant/pack/pairs.glsl"
#include "relayout/pairs256.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

uint code(Source src, uint block, uint element) {
    return code_pair(src, block, element);
}

// Of the ten half words of 8 blocks each block writes its own, and the first one the last two.
void store_scale(Source src, Scales scales, uint block) {
    const uint from = block / 8 * BLOCK_BYTES;
    const uint to = block / 8 * 10;
    scales.v[to + block % 8] = uint16_t(word_at(src, from + block % 8 * 2));
    if (block % 8 == 0) {
        scales.v[to + 8] = uint16_t(word_at(src, from + SHARED));
        scales.v[to + 9] = uint16_t(word_at(src, from + SHARED + 2));
    }
}

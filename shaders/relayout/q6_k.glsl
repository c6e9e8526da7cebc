// Q6_K: blocks of 256, 128 bytes of nibbles, 64 of upper pairs of bits, 16 scales of 8 bits, a half-precision scale. Each
// half of the block has 64 bytes of nibbles and 32 of pairs for its four runs of 32 elements.
const uint BLOCK_BYTES = 210;
const uint PAIRS = 128;
const uint GROUP_SCALES = 192;
#include "quant/pack/nibbles_high2.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

uint code(Source src, uint block, uint element) {
    const uint from = block / 8 * BLOCK_BYTES;
    const uint side = block % 8 / 4;
    const uint run = block % 4;
    const uint low = byte_at(src, from + side * 64 + run % 2 * 32 + element) >> (run / 2 * 4) & 15u;
    const uint high = byte_at(src, from + PAIRS + side * 32 + element) >> (run * 2) & 3u;
    return low | high << 4;
}

// Of the ten half words of 8 blocks each block writes its own, and the first one the last two.
void store_scale(Source src, Scales scales, uint block) {
    const uint from = block / 8 * BLOCK_BYTES + GROUP_SCALES;
    const uint to = block / 8 * 10;
    scales.v[to + block % 8] = uint16_t(word_at(src, from + block % 8 * 2));
    if (block % 8 == 0) {
        scales.v[to + 8] = uint16_t(word_at(src, from + 16));
        scales.v[to + 9] = uint16_t(0);
    }
}

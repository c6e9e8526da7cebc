// Q3_K: blocks of 256, 32 bytes whose bit j is the third of run j of 32 elements, 64 bytes of lower pairs of bits, 12 bytes with
// 6 bits of scale for each group of 16, less 32, a half-precision scale. Each half of the block has 32 bytes of pairs.
const uint BLOCK_BYTES = 110;
const uint PAIRS = 32;
const uint GROUP_SCALES = 96;
const uint SHARED_SCALE = 108;
#include "quant/pack/pairs_high1.glsl"
#include "relayout/pairs256.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

uint code(Source src, uint block, uint element) {
    const uint bit = byte_at(src, block / 8 * BLOCK_BYTES + element) >> block % 8 & 1u;
    return code_pair(src, block, element) | bit << 2;
}

// The scale of one of the 16 groups, a byte: four bits of one of eight bytes, and two of one of four.
uint group_scale(Source src, uint from, uint group) {
    const uint low = byte_at(src, from + group % 8) >> (group / 8 * 4) & 15u;
    const uint high = byte_at(src, from + 8 + group % 4) >> (group / 4 * 2) & 3u;
    return ((low | high << 4) - 32u) & 0xffu;
}

// Of the ten half words of 8 blocks each block writes its own, and the first one the last two.
void store_scale(Source src, Scales scales, uint block) {
    const uint from = block / 8 * BLOCK_BYTES;
    const uint to = block / 8 * 10;
    const uint group = block % 8 * 2;
    const uint low = group_scale(src, from + GROUP_SCALES, group);
    scales.v[to + block % 8] = uint16_t(low | group_scale(src, from + GROUP_SCALES, group + 1) << 8);
    if (block % 8 == 0) {
        scales.v[to + 8] = uint16_t(word_at(src, from + SHARED_SCALE));
        scales.v[to + 9] = uint16_t(0);
    }
}

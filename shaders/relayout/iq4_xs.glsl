// IQ4_XS: blocks of 256, a header of 8 bytes, then for each run of 32 elements 16 bytes of nibbles that choose from a table.
const uint BLOCK_BYTES = 136;
const uint NIBBLES = 8;
#include "quant/pack/planes.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

uint code(Source src, uint block, uint element) {
    const uint from = block / 8 * BLOCK_BYTES + NIBBLES + block % 8 * 16;
    return byte_at(src, from + element % 16) >> (element / 16 * 4) & 15u;
}

// Of the four half words of 8 blocks the first four blocks write one each.
void store_scale(Source src, Scales scales, uint block) {
    const uint place = block % 8;
    if (place < 4) {
        scales.v[block / 8 * 4 + place] = uint16_t(word_at(src, block / 8 * BLOCK_BYTES + place * 2));
    }
}

// Writes scales as quant/scales/iq4_xs_header.glsl reads them, of a half-precision scale at the beginning of 8 blocks and the file's
// `scale_nibble`, s of a block, which means 2 s + 1. Of the four half words of 8 blocks the first four blocks write one each.
layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

void store_scale(Source src, Scales scales, uint block) {
    const uint place = block % 8;
    const uint first = block - place;
    if (place > 3) {
        return;
    }
    uint word = 0;
    if (place == 0) {
        word = word_at(src, first / 8 * BLOCK_BYTES);
    } else if (place == 1) {
        for (uint i = 0; i < 8; i++) {
            word |= (scale_nibble(src, first + i) * 2 + 33) >> 4 << (2 * i);
        }
    } else {
        for (uint i = 0; i < 4; i++) {
            word |= (scale_nibble(src, first + (place - 2) * 4 + i) * 2 + 33 & 15u) << (4 * i);
        }
    }
    scales.v[first / 8 * 4 + place] = uint16_t(word);
}

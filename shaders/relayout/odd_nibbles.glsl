// Writes scales as quant/scales/odd_nibbles.glsl reads them, of the file's `shared_scale` and `scale_pair`, the nibbles of a block's
// two groups. Of the five half words of 8 blocks the first five blocks write one each.
layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

void store_scale(Source src, Scales scales, uint block) {
    const uint place = block % 8;
    const uint first = block - place;
    if (place == 0) {
        scales.v[first / 8 * 5] = uint16_t(shared_scale(src, first));
    } else if (place < 5) {
        const uint pair = first + (place - 1) * 2;
        scales.v[first / 8 * 5 + place] = uint16_t(scale_pair(src, pair) | scale_pair(src, pair + 1) << 8);
    }
}

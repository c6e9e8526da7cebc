// One half-precision scale at the beginning of a block.
layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

void store_scale(Source src, Scales scales, uint block) {
    scales.v[block] = uint16_t(word_at(src, block * BLOCK_BYTES));
}

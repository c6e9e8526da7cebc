// Scale and offset in half precision at the beginning of a block.
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Scales { uint v[]; };

void store_scale(Source src, Scales scales, uint block) {
    scales.v[block] = word_at(src, block * BLOCK_BYTES) | word_at(src, block * BLOCK_BYTES + 2) << 16;
}

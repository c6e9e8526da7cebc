// The first 16 bytes of a block of 256 as they are, by its first invocation of 8.
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Scales { uint v[]; };

void store_scale(Source src, Scales scales, uint block) {
    if (block % 8 == 0) {
        const uint from = block / 8 * BLOCK_BYTES;
        for (uint i = 0; i < 4; i++) {
            scales.v[block / 8 * 4 + i] = word_at(src, from + 4 * i) | word_at(src, from + 4 * i + 2) << 16;
        }
    }
}

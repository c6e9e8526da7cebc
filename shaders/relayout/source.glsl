// GGUF's blocks as they lie in a file; a read of the last of an odd number of bytes takes one more.
layout(buffer_reference, scalar, buffer_reference_align = 2) readonly restrict buffer Source { uint16_t v[]; };

// The 16 bits at an even offset.
uint word_at(Source src, uint offset) {
    return uint(src.v[offset / 2]);
}

uint byte_at(Source src, uint offset) {
    return word_at(src, offset) >> (offset % 2 * 8) & 0xffu;
}

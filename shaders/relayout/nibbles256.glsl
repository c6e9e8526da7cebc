// 128 bytes at NIBBLES of a block of 256: of every two runs of 32 elements the lower halves of 32 bytes, then the upper ones.
uint nibble(Source src, uint block, uint element) {
    const uint from = block / 8 * BLOCK_BYTES + NIBBLES + block % 8 / 2 * 32;
    return byte_at(src, from + element) >> (block % 2 * 4) & 15u;
}

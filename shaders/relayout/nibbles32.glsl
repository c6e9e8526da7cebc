// 16 bytes at NIBBLES of a block of 32: elements 0 to 15 in the lower halves, 16 to 31 in the upper ones.
uint nibble(Source src, uint block, uint element) {
    return byte_at(src, block * BLOCK_BYTES + NIBBLES + element % 16) >> (element / 16 * 4) & 15u;
}

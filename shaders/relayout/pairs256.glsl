// 64 bytes at PAIRS of a block of 256: of each half the lowest pairs of bits of 32 bytes are a run of 32 elements, and so on.
uint code_pair(Source src, uint block, uint element) {
    const uint from = block / 8 * BLOCK_BYTES + PAIRS + block % 8 / 4 * 32;
    return byte_at(src, from + element) >> (block % 4 * 2) & 3u;
}

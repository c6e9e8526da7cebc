// Four codes in a word, the order in which quantised weights and activations lie: elements 0, 2, 1, 3.
uint code_word(ivec4 codes) {
    const uvec4 bytes = uvec4(codes) & 0xffu;
    return bytes.x | bytes.z << 8 | bytes.y << 16 | bytes.w << 24;
}

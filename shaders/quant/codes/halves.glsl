// (code - ZERO) of a block's weights as halves, in the order of the elements: the way of most formats.

// Two codes, in the lower bytes of a word's halves, as halves: a byte b under the exponent of 1024 is 1024 + b.
f16vec2 half_pair(uint codes) {
    return unpackFloat2x16((codes & 0x00ff00ffu) | 0x64006400u) - f16vec2(float16_t(1024 + 128 + ZERO));
}

void quad_halves(Codes codes, uint quad, out f16vec2 low, out f16vec2 high) {
    uvec4 first, second;
    unpack_codes(codes, first, second);
    const uint word = (quad < 4 ? first : second)[quad % 4] ^ 0x80808080u;  // signed bytes become bytes above 128
    low = half_pair(word);
    high = half_pair(word >> 8);
}

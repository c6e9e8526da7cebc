// Writes a block's codes as codes/nibbles_high2.glsl reads them.
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Quants { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly restrict buffer High { uvec2 v[]; };

void store_codes(Quants quants, High high, uint block, uint words[8]) {
    uvec2 bits = uvec2(0);
    for (uint w = 0; w < 8; w++) {
        bits[w / 4] |= ((words[w] >> 4) & 0x03030303u) << (2 * (w % 4));
        words[w] &= 0x0f0f0f0fu;
    }
    high.v[block] = bits;
    quants.v[block] = uvec4(words[0] | words[2] << 4, words[1] | words[3] << 4,
                            words[4] | words[6] << 4, words[5] | words[7] << 4);
}

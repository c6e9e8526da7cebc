// Writes a block's codes as codes/nibbles.glsl reads them.
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Quants { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer High { uint v[]; };  // not written

void store_codes(Quants quants, High high, uint block, uint words[8]) {
    quants.v[block] = uvec4(words[0] | words[2] << 4, words[1] | words[3] << 4,
                            words[4] | words[6] << 4, words[5] | words[7] << 4);
}

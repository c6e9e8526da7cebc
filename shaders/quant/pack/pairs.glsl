// Writes a block's codes as codes/pairs.glsl reads them.
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly restrict buffer Quants { uvec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer High { uint v[]; };  // not written

void store_codes(Quants quants, High high, uint block, uint words[8]) {
    uvec2 pairs = uvec2(0);
    for (uint w = 0; w < 8; w++) {
        pairs[w / 4] |= (words[w] & 0x03030303u) << (2 * (w % 4));
    }
    quants.v[block] = pairs;
}

// Q5_1: blocks of 32, scale and offset, 32 fifth bits, then nibbles.
const uint BLOCK_BYTES = 24;
const uint NIBBLES = 8;
#include "quant/pack/nibbles_high1.glsl"
#include "relayout/half_pair.glsl"
#include "relayout/nibbles32.glsl"

uint code(Source src, uint block, uint element) {
    const uint bit = byte_at(src, block * BLOCK_BYTES + 4 + element / 8) >> element % 8 & 1u;
    return nibble(src, block, element) | bit << 4;
}

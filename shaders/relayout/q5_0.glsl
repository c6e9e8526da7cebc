// Q5_0: blocks of 32, a half-precision scale, 32 fifth bits, then nibbles.
const uint BLOCK_BYTES = 22;
const uint NIBBLES = 6;
#include "quant/pack/nibbles_high1.glsl"
#include "relayout/half_scale.glsl"
#include "relayout/nibbles32.glsl"

uint code(Source src, uint block, uint element) {
    const uint bit = byte_at(src, block * BLOCK_BYTES + 2 + element / 8) >> element % 8 & 1u;
    return nibble(src, block, element) | bit << 4;
}

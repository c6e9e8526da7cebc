// Q4_1: blocks of 32, scale and offset, then nibbles.
const uint BLOCK_BYTES = 20;
const uint NIBBLES = 4;
#include "quant/pack/nibbles.glsl"
#include "relayout/half_pair.glsl"
#include "relayout/nibbles32.glsl"

uint code(Source src, uint block, uint element) {
    return nibble(src, block, element);
}

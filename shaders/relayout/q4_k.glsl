// Q4_K: blocks of 256, a header of 16 bytes, then nibbles.
const uint BLOCK_BYTES = 144;
const uint NIBBLES = 16;
#include "quant/pack/nibbles.glsl"
#include "relayout/k_header.glsl"
#include "relayout/nibbles256.glsl"

uint code(Source src, uint block, uint element) {
    return nibble(src, block, element);
}

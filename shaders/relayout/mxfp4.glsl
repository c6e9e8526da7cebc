// MXFP4: blocks of 32, a byte of the scale's exponent, then nibbles that choose from a table.
const uint BLOCK_BYTES = 17;
const uint NIBBLES = 1;
#include "quant/pack/planes.glsl"
#include "relayout/mxfp4_scale.glsl"
#include "relayout/nibbles32.glsl"

uint code(Source src, uint block, uint element) {
    return nibble(src, block, element);
}

void store_scale(Source src, Scales scales, uint block) {
    scales.v[block] = half_scale(byte_at(src, block * BLOCK_BYTES));
}

// IQ4_NL: blocks of 32, a half-precision scale, then nibbles that choose from a table.
const uint BLOCK_BYTES = 18;
const uint NIBBLES = 2;
#include "quant/pack/planes.glsl"
#include "relayout/half_scale.glsl"
#include "relayout/nibbles32.glsl"

uint code(Source src, uint block, uint element) {
    return nibble(src, block, element);
}

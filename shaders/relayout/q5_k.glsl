// Q5_K: blocks of 256, a header of 16 bytes, 32 bytes whose bit j is the fifth of run j of 32 elements, then nibbles.
const uint BLOCK_BYTES = 176;
const uint NIBBLES = 48;
#include "quant/pack/nibbles_high1.glsl"
#include "relayout/k_header.glsl"
#include "relayout/nibbles256.glsl"

uint code(Source src, uint block, uint element) {
    const uint bit = byte_at(src, block / 8 * BLOCK_BYTES + 16 + element) >> block % 8 & 1u;
    return nibble(src, block, element) | bit << 4;
}

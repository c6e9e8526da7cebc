// MXFP4: blocks of 32, a byte of the scale's exponent, then nibbles that choose from a table.
const uint BLOCK_BYTES = 17;
const uint NIBBLES = 1;
#include "quant/pack/planes.glsl"
#include "relayout/nibbles32.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

uint code(Source src, uint block, uint element) {
    return nibble(src, block, element);
}

// 2^(e - 128) in half precision, half of what the byte means since levels are doubled: below 2^-24 zero, from 2^16 on infinity.
void store_scale(Source src, Scales scales, uint block) {
    const uint e = byte_at(src, block * BLOCK_BYTES);
    const uint subnormal = e < 104 ? 0u : 1u << (e - 104);
    scales.v[block] = uint16_t(e < 114 ? subnormal : min(e - 113, 31u) << 10);
}

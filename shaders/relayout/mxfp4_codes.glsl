// MXFP4 as gpt-oss is published in safetensors: of a block of 32 the nibbles alone, neighbours in a byte; see mxfp4_scales.glsl.
const uint BLOCK_BYTES = 16;
#include "quant/pack/planes.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

uint code(Source src, uint block, uint element) {
    return byte_at(src, block * BLOCK_BYTES + element / 2) >> (element % 2 * 4) & 15u;
}

void store_scale(Source src, Scales scales, uint block) {
}

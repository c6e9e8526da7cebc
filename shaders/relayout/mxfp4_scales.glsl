// MXFP4 as gpt-oss is published in safetensors: of a block of 32 the byte of the scale's exponent alone; see mxfp4_codes.glsl.
#include "relayout/mxfp4_scale.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Quants { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer High { uint v[]; };

uint code(Source src, uint block, uint element) {
    return 0;
}

void store_codes(Quants quants, High high, uint block, uint words[8]) {
}

void store_scale(Source src, Scales scales, uint block) {
    scales.v[block] = half_scale(byte_at(src, block));
}

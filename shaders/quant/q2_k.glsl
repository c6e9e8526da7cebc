// Blocks of 256 weights in 16 of 16, code * scale + offset, both of them a group's own: the values of GGUF's Q2_K.
#include "quant/blocks.glsl"

const int ZERO = 0;
#include "quant/codes/pairs.glsl"
#include "quant/scales/q2_k_header.glsl"

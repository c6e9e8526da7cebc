// Blocks of 256 weights in 8 of 32, code * scale + offset: the values of GGUF's Q4_K.
#include "quant/blocks.glsl"

const int ZERO = 0;
#include "quant/codes/nibbles.glsl"
#include "quant/scales/k_header.glsl"

// Blocks of 256 weights in 8 of 32, code * scale + offset: the values of GGUF's Q5_K.
#include "quant/blocks.glsl"

const int ZERO = 0;
#include "quant/codes/nibbles_high1.glsl"
#include "quant/scales/k_header.glsl"

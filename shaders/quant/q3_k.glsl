// Blocks of 256 weights in 16 of 16, (code - 4) * scale: the values of GGUF's Q3_K.
#include "quant/blocks.glsl"

const int ZERO = 4;
#include "quant/codes/pairs_high1.glsl"
#include "quant/scales/q6_k_header.glsl"

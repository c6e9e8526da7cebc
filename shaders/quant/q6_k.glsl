// Blocks of 256 weights in 16 of 16, (code - 32) * scale: the values of GGUF's Q6_K.
#include "quant/blocks.glsl"

const int ZERO = 32;
#include "quant/codes/nibbles_high2.glsl"
#include "quant/scales/q6_k_header.glsl"

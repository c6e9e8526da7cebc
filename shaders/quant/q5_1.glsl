// Blocks of 32 weights, code * scale + offset: the values of GGUF's Q5_1.
#include "quant/blocks.glsl"

const int ZERO = 0;
#include "quant/codes/nibbles_high1.glsl"
#include "quant/scales/half_pair.glsl"

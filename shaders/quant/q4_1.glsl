// Blocks of 32 weights, code * scale + offset: the values of GGUF's Q4_1.
#include "quant/blocks.glsl"

const int ZERO = 0;
#include "quant/codes/nibbles.glsl"
#include "quant/scales/half_pair.glsl"

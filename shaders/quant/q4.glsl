// Blocks of 32 weights, (code - 8) * scale: the values of int4 and of GGUF's Q4_0.
#include "quant/blocks.glsl"

const int ZERO = 8;
const uint SCALE_BLOCKS = 1;
#include "quant/codes/nibbles.glsl"
#include "quant/scales/half.glsl"

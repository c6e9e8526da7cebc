// Blocks of 32 weights, (code - 16) * scale: the values of GGUF's Q5_0.
#include "quant/blocks.glsl"

const int ZERO = 16;
const uint SCALE_BLOCKS = 1;
#include "quant/codes/nibbles_high1.glsl"
#include "quant/scales/half.glsl"

// Blocks of 32 weights, code * scale: the values of int8 and of GGUF's Q8_0.
#include "quant/blocks.glsl"

const int ZERO = 0;
const uint SCALE_BLOCKS = 1;
#include "quant/codes/bytes.glsl"
#include "quant/scales/half.glsl"

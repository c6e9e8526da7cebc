// Blocks of 32 weights, level * scale: the values of GGUF's MXFP4, whose scales are powers of two.
#include "quant/blocks.glsl"

const int ZERO = 0;
const uint SCALE_BLOCKS = 1;
#include "quant/tables/mxfp4.glsl"
#include "quant/codes/table.glsl"
#include "quant/scales/half.glsl"

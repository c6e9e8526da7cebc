// Blocks of 64 weights in two of 32, code * scale, of codes in E4M3: the values of FP8 checkpoints.
#include "quant/blocks.glsl"

const int ZERO = 0;
const uint SCALE_BLOCKS = 2;
#include "quant/codes/e4m3.glsl"
#include "quant/scales/single.glsl"

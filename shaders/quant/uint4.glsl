// Blocks of 32 weights, (code - zero) * scale: the values of 4-bit checkpoints with zero points.
#include "quant/blocks.glsl"

const int ZERO = 0;
#include "quant/codes/nibbles.glsl"
#include "quant/scales/half_zero.glsl"

// Blocks of 256 weights in 16 of 16, level * scale: the values of GGUF's IQ2_XXS, IQ2_XS and IQ2_S.
#include "quant/blocks.glsl"

const int ZERO = 0;
const float SCALE_STEP = 0.125;
#include "quant/tables/iq2.glsl"
#include "quant/codes/table8.glsl"
#include "quant/scales/odd_nibbles.glsl"

// Blocks of 256 weights in 8 of 32, level * scale: the values of GGUF's IQ3_XXS.
#include "quant/blocks.glsl"

const int ZERO = 0;
const float SCALE_STEP = 0.25;
#include "quant/tables/iq3_xxs.glsl"
#include "quant/codes/table.glsl"
#include "quant/scales/iq4_xs_header.glsl"

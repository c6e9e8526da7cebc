// Blocks of 256 weights in 16 of 16, level * scale: the values of GGUF's IQ1_S and IQ1_M.
#include "quant/blocks.glsl"

const int ZERO = 0;
const float SCALE_STEP = 0.125;
#include "quant/tables/iq1.glsl"
#include "quant/codes/table8.glsl"
#include "quant/scales/odd_nibbles.glsl"

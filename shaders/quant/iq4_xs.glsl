// Blocks of 256 weights in 8 of 32, level * scale: the values of GGUF's IQ4_XS.
#include "quant/blocks.glsl"

const int ZERO = 0;
const float SCALE_STEP = 1.0;
#include "quant/tables/iq4.glsl"
#include "quant/codes/table.glsl"
#include "quant/scales/iq4_xs_header.glsl"

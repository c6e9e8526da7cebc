// Blocks of 256 weights in 8 of 32, (code - 16) * scale with odd codes: the values of GGUF's IQ3_S.
#include "quant/blocks.glsl"

const int ZERO = 16;
const float SCALE_STEP = 1.0;
#include "quant/codes/odd_nibbles.glsl"
#include "quant/scales/iq4_xs_header.glsl"

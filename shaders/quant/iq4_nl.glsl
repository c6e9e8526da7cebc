// Blocks of 32 weights, level * scale: the values of GGUF's IQ4_NL.
#include "quant/blocks.glsl"

const int ZERO = 0;
const uint SCALE_BLOCKS = 1;
const uvec4 TABLE = uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
#include "quant/codes/table.glsl"
#include "quant/scales/half.glsl"

// Blocks of 64 weights, level * scale / 127. The levels are those of NormalFloat4 (Dettmers et al., QLoRA, appendix E) in
// whole 127ths, so that integer products serve them.
#include "quant/blocks.glsl"

const int ZERO = 0;
const uint SCALE_BLOCKS = 2;
#include "quant/tables/nf4.glsl"
#include "quant/codes/table.glsl"
#include "quant/scales/half.glsl"

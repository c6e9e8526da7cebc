// Q8_0: blocks of 32, a half-precision scale, then signed bytes.
const uint BLOCK_BYTES = 34;
#include "quant/pack/bytes.glsl"
#include "relayout/half_scale.glsl"

uint code(Source src, uint block, uint element) {
    return byte_at(src, block * BLOCK_BYTES + 2 + element);
}

// Choices of NormalFloat4 as bitsandbytes has them, neighbours in a byte, the first in its upper half.
#include "codes/words.glsl"
#include "quant/pack/planes.glsl"

ivec4 four_codes(Source src, uint block, uint quad) {
    return ivec4(uvec4(src.v[block * 4 + quad / 2] >> 16 * (quad % 2)) >> uvec4(4, 0, 12, 8) & 15u);
}

bool is_number(int code) {
    return true;
}

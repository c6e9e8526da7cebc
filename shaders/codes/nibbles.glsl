// Nibbles, neighbours in a byte, the first in its lower half.
#include "codes/words.glsl"
#include "quant/pack/nibbles.glsl"

ivec4 four_codes(Source src, uint block, uint quad) {
    return ivec4(uvec4(src.v[block * 4 + quad / 2] >> 16 * (quad % 2)) >> uvec4(0, 4, 8, 12) & 15u);
}

bool is_number(int code) {
    return true;
}

// Signed bytes.
#include "codes/words.glsl"
#include "quant/pack/bytes.glsl"

ivec4 four_codes(Source src, uint block, uint quad) {
    return ivec4(uvec4(src.v[block * 8 + quad]) >> uvec4(0, 8, 16, 24) & 0xffu);
}

bool is_number(int code) {
    return true;
}

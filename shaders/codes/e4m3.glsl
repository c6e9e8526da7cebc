// Floats of 8 bits in E4M3, of which 0x7f and 0xff are no numbers; there are no infinities.
#include "codes/words.glsl"
#include "quant/pack/bytes.glsl"

ivec4 four_codes(Source src, uint block, uint quad) {
    return ivec4(uvec4(src.v[block * 8 + quad]) >> uvec4(0, 8, 16, 24) & 0xffu);
}

bool is_number(int code) {
    return (code & 0x7f) != 0x7f;
}

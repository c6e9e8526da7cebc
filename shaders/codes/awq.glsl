// AWQ: a word has eight rows of a column, even ones in its lower half and odd ones in the upper.
#include "quant/pack/nibbles.glsl"

uint code(Source src, uint width, uint row, uint column) {
    return src.v[column * width + row / 8] >> (16 * (row % 2) + 4 * (row % 8 / 2)) & 15u;
}

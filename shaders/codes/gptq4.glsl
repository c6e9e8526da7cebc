// GPTQ in 4 bits: a word has eight columns of a row.
#include "quant/pack/nibbles.glsl"

uint code(Source src, uint width, uint row, uint column) {
    return src.v[column / 8 * width + row] >> 4 * (column % 8) & 15u;
}

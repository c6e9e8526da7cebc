// GPTQ in 8 bits with zero points of 128: a word has four columns of a row.
#include "quant/pack/bytes.glsl"

uint code(Source src, uint width, uint row, uint column) {
    return (src.v[column / 4 * width + row] >> 8 * (column % 4) & 0xffu) ^ 0x80u;
}

// Rows in half precision, in the order in which a lane of linear_quant_fragments holds its part of matrices. Tiles of 16 rows
// and 128 elements are 8 matrices; lane 4 g + q has of matrix s the four elements from 32 q + 4 s on of row g, then those of
// row g + 8.
#include "include/half_rows.glsl"

void store_part(OutValues y, OutScales scales, uint row, uint quads, uint quad, vec4 values, float largest) {
    const uint matrix = (row / 16 * (quads / 32) + quad / 32) * 8 + quad % 8;
    const uint lane = row % 8 * 4 + quad % 32 / 8;
    y.v[(matrix * 32 + lane) * 2 + row % 16 / 8] = scaled_halves(values, largest);
}

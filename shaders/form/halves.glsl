// Rows in half precision, one after the other, for matrix kernels that stage them in shared memory.
#include "include/half_rows.glsl"

void store_part(OutValues y, OutScales scales, uint row, uint quads, uint quad, vec4 values, float largest) {
    y.v[row * quads + quad] = scaled_halves(values, largest);
}

// Blocks of 32 bytes, for integer dot products; eight neighbouring lanes call together.
#include "include/block_store.glsl"

#define OutValues BlockCodes
#define OutScales BlockScales
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer OutCounters { uint v[]; };  // not written

const bool NEEDS_LARGEST = false;

void store_part(OutValues y, OutScales scales, uint row, uint quads, uint quad, vec4 values, float largest) {
    store_quad(y, scales, row, quads / 8, quad, values);
}

void finish_row(OutScales scales, OutCounters counters, uint row, uint num_counters, uint lane, uint lanes, float largest) {
}

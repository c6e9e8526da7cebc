// Writes a block's codes as codes/table8.glsl reads them: planes of their three bits.
#include "include/bit_planes.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly restrict buffer Quants { uvec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer High { uint v[]; };

void store_codes(Quants quants, High high, uint block, uint words[8]) {
    const uvec4 planes = transposed(uvec4(words[0] | words[2] << 4, words[1] | words[3] << 4,
                                          words[4] | words[6] << 4, words[5] | words[7] << 4));
    quants.v[block] = planes.xy;
    high.v[block] = planes.z;
}

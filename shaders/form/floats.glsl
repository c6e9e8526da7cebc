// Rows of floats, for kernels that read activations as they are.
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer OutValues { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer OutScales { float v[]; };  // not written
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer OutCounters { uint v[]; };  // not written

const bool NEEDS_LARGEST = false;

void store_part(OutValues y, OutScales scales, uint row, uint quads, uint quad, vec4 values, float largest) {
    y.v[row * quads + quad] = values;
}

void finish_row(OutScales scales, OutCounters counters, uint row, uint num_counters, uint lane, uint lanes, float largest) {
}

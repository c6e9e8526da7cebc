// Output in floats; see shaders/attention/half_rows.glsl for the names.
#include "form/floats.glsl"

const bool NEEDS_NEIGHBOURS = false;

void store_output(OutValues y, OutScales scales, uint row, uint quads, uint quad, vec4 values) {
    store_part(y, scales, row, quads, quad, values, 0);
}

void store_octet(OutValues y, OutScales scales, uint row, uint octets, uint octet, vec4 low, vec4 high) {
    store_output(y, scales, row, 2 * octets, 2 * octet, low);
    store_output(y, scales, row, 2 * octets, 2 * octet + 1, high);
}

void store_octets(OutValues y, OutScales scales, uint row, uint octets, uint octet, vec4 values[4]) {
    store_octet(y, scales, row, octets, octet, values[0], values[1]);
    store_octet(y, scales, row, octets, octet + 1, values[2], values[3]);
}

void begin_row(OutScales scales, uint row) {
}

void clear_counters(OutCounters counters, uint num_counters, uint lane, uint lanes) {
}

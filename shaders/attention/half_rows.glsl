// Output in halves, included after a form of these. A row needs its scale before all of its heads are known, so it is 1. An
// output is a mean of values in the cache, which are finite halves: it overflows no half but by the rounding of weights, which
// saturates, and where it loses bits for being small, the values have lost as many on their way into the cache.
const float LARGEST = 8192.0; // the magnitude for which include/half_rows.glsl takes 1 as the scale
const float MOST = 65504.0;
const bool NEEDS_NEIGHBOURS = false; // whether eight neighbouring lanes call store_output together

// Writes the four elements of a row that begin at 4 * quad; the row has `quads` times four.
void store_output(OutValues y, OutScales scales, uint row, uint quads, uint quad, vec4 values) {
    store_part(y, scales, row, quads, quad, clamp(values, -MOST, MOST), LARGEST);
}

// As store_output, for the eight elements of a row that begin at 8 * octet.
void store_octet(OutValues y, OutScales scales, uint row, uint octets, uint octet, vec4 low, vec4 high) {
    store_output(y, scales, row, 2 * octets, 2 * octet, low);
    store_output(y, scales, row, 2 * octets, 2 * octet + 1, high);
}

// As store_output, for the sixteen elements from 8 * octet on.
void store_octets(OutValues y, OutScales scales, uint row, uint octets, uint octet, vec4 values[4]) {
    store_octet(y, scales, row, octets, octet, values[0], values[1]);
    store_octet(y, scales, row, octets, octet + 1, values[2], values[3]);
}

// What a row needs beside its elements; one lane calls it once.
void begin_row(OutScales scales, uint row) {
    scales.v[row] = 1.0;
}

// What a step's rows need beside that, see include/half_rows.glsl; a workgroup calls it.
void clear_counters(OutCounters counters, uint num_counters, uint lane, uint lanes) {
    for (uint i = lane; i < num_counters; i += lanes)
        counters.v[i] = 0;
}

// Output in blocks of 32 bytes; see shaders/attention/half_rows.glsl for the names.
#include "form/blocks.glsl"

const bool NEEDS_NEIGHBOURS = true;

void store_output(OutValues y, OutScales scales, uint row, uint quads, uint quad, vec4 values) {
    store_part(y, scales, row, quads, quad, values, 0);
}

float largest(vec4 low, vec4 high) {
    vec4 sizes = max(abs(low), abs(high));
    return max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
}

// Writes eight elements of a block with this largest magnitude; returns the sum of their codes.
int store_codes(OutValues y, uint row, uint octets, uint octet, vec4 low, vec4 high, float magnitude) {
    float factor = magnitude > 1e-30 ? 127.0 / magnitude : 0.0;
    ivec4 first = ivec4(roundEven(low * factor));
    ivec4 second = ivec4(roundEven(high * factor));
    uint part = octet % 4;
    uint word = ((2 * row + part / 2) * (octets / 4) + octet / 4) * 4 + part % 2 * 2;
    y.v[word] = code_word(first);
    y.v[word + 1] = code_word(second);
    ivec4 sums = first + second;
    return sums.x + sums.y + sums.z + sums.w;
}

void store_header(OutScales scales, uint row, uint octets, uint octet, float magnitude, int first_sum, int second_sum) {
    uint sums = (first_sum & 0xffff) | second_sum << 16;
    if (octet % 4 == 0)
        scales.v[row * (octets / 4) + octet / 4] = uvec2(floatBitsToUint(magnitude / 127.0), sums);
}

// Four neighbouring lanes call together. Writes what store_quad of include/block_store.glsl would.
void store_octet(OutValues y, OutScales scales, uint row, uint octets, uint octet, vec4 low, vec4 high) {
    float magnitude = largest(low, high);
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 1));
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 2));
    int sum = store_codes(y, row, octets, octet, low, high, magnitude);
    sum += subgroupShuffleXor(sum, 1);
    int other_sum = subgroupShuffleXor(sum, 2);
    store_header(scales, row, octets, octet, magnitude, sum, other_sum);
}

// Two neighbouring lanes call together.
void store_octets(OutValues y, OutScales scales, uint row, uint octets, uint octet, vec4 values[4]) {
    float magnitude = max(largest(values[0], values[1]), largest(values[2], values[3]));
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 1));
    int sum = store_codes(y, row, octets, octet, values[0], values[1], magnitude);
    sum += store_codes(y, row, octets, octet + 1, values[2], values[3], magnitude);
    int other_sum = subgroupShuffleXor(sum, 1);
    store_header(scales, row, octets, octet, magnitude, sum, other_sum);
}

void begin_row(OutScales scales, uint row) {
}

void clear_counters(OutCounters counters, uint num_counters, uint lane, uint lanes) {
}

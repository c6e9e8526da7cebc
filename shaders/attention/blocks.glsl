// Output in blocks of 32 bytes; see shaders/attention/half_rows.glsl for the names.
#include "form/blocks.glsl"

const float LARGEST = 0;
const bool NEEDS_NEIGHBOURS = true;

// Four neighbouring lanes call together. Writes what store_quad of include/block_store.glsl would.
void store_octet(OutValues y, OutScales scales, uint row, uint octets, uint octet, vec4 low, vec4 high) {
    vec4 sizes = max(abs(low), abs(high));
    float magnitude = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 1));
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 2));
    float factor = magnitude > 1e-30 ? 127.0 / magnitude : 0.0;
    ivec4 first = ivec4(roundEven(low * factor));
    ivec4 second = ivec4(roundEven(high * factor));
    ivec4 sums = first + second;
    int sum = sums.x + sums.y + sums.z + sums.w;
    sum += subgroupShuffleXor(sum, 1);
    int other_sum = subgroupShuffleXor(sum, 2);
    uint blocks = octets / 4, block = octet / 4, part = octet % 4;
    uint word = ((2 * row + part / 2) * blocks + block) * 4 + part % 2 * 2;
    y.v[word] = code_word(first);
    y.v[word + 1] = code_word(second);
    if (part == 0)
        scales.v[row * blocks + block] = uvec2(floatBitsToUint(magnitude / 127.0), (sum & 0xffff) | other_sum << 16);
}

void begin_row(OutScales scales, uint row) {
}

void clear_counters(OutCounters counters, uint num_counters, uint lane, uint lanes) {
}

// Counts values out of the range of a narrower type. Magnitudes are compared by their bits: that finds infinities and NaNs too,
// which a comparison of floats may miss.
layout(buffer_reference, scalar, buffer_reference_align = 4) restrict buffer Counter { uint v; };

uint num_beyond(vec4 values, uint largest) {
    const uvec4 beyond = uvec4(greaterThan(floatBitsToUint(values) & 0x7fffffffu, uvec4(largest)));
    return beyond.x + beyond.y + beyond.z + beyond.w;
}

// Adds to the counter; a null one is not asked for.
void count_out_of_range(Counter counter, uint count) {
    if (count != 0 && uint64_t(counter) != 0) {
        atomicAdd(counter.v, count);
    }
}

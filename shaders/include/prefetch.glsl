// Touches memory that is about to be read, a word of each line, so that it comes while other work goes on. This is for
// devices that are CPUs: their loads wait one after the other, and nothing else runs meanwhile.

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Line { uint v; };

const uint LINE_BYTES = 64;

// The sum of the words that a lane of the subgroup touched. The compiler drops loads of which nothing can come, so the caller
// must let the sum decide something.
uint prefetch(uint64_t begin, uint nbytes) {
    uint sum = 0;
    for (uint at = gl_SubgroupInvocationID * LINE_BYTES; at < nbytes; at += gl_SubgroupSize * LINE_BYTES) {
        sum += Line(begin + at).v;
    }
    return sum;
}

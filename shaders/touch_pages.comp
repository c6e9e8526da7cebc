// Reads a word of every STRIDE bytes of up to four ranges of memory, and their last words, and keeps nothing: so a device has
// found where these pages are when other kernels read them. Lanes of all workgroups along x take a place of each range each.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(constant_id = 1) const uint STRIDE = 1048576; // bytes
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Word { uint v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Sink { uint v; };

layout(push_constant, scalar) uniform P {
    uint64_t first0; // addresses of the ranges
    uint64_t first1;
    uint64_t first2;
    uint64_t first3;
    Sink sink; // (1), memory that nobody reads; without a use of what was read compilers leave the reads out
    uint words0; // sizes of the ranges, 0 for none
    uint words1;
    uint words2;
    uint words3;
} p;

uint touch(uint64_t first, uint words, uint place) {
    uint at = place * (STRIDE / 4);
    return words > 0 && at < words + STRIDE / 4 ? Word(first + 4ul * min(at, words - 1)).v : 0;
}

void main() {
    uint place = gl_WorkGroupID.x * WORKGROUP + gl_LocalInvocationID.x;
    uint mixed = touch(p.first0, p.words0, place) ^ touch(p.first1, p.words1, place)
               ^ touch(p.first2, p.words2, place) ^ touch(p.first3, p.words3, place);
    if (mixed == 0x9e3779b9)
        p.sink.v = mixed;
}

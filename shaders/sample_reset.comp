#version 460
// Forgets what the sequences of the listed states have seen. A workgroup owns a chunk of one state's counts.
#extension GL_EXT_buffer_reference : require
#extension GL_GOOGLE_include_directive : require
#include "include/sample.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer StateIndices { uint indices[]; };  // (states)

const uint LANES = 64;
layout(local_size_x = LANES) in;  // grid: (chunks, states)
layout(constant_id = 0) const uint CHUNK = 2048;

layout(push_constant) uniform P {
    StateIndices state_indices;
    Counts counts;
    uint vocab;
} p;

void main() {
    uint state_index = p.state_indices.indices[gl_WorkGroupID.y];
    if (state_index == NO_STATE) return;
    uint start = gl_WorkGroupID.x * CHUNK;
    uint end = min(start + CHUNK, p.vocab);
    for (uint id = start + gl_LocalInvocationID.x; id < end; id += LANES) p.counts.counts[state_index * p.vocab + id] = 0;
}

#version 460
// Forgets what the sequences of the listed state slots have seen. A workgroup owns a chunk of one slot's counts.
#extension GL_EXT_buffer_reference : require
#extension GL_GOOGLE_include_directive : require
#include "include/sample.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Slots { uint slots[]; };  // (slots)

const uint LANES = 64;
layout(local_size_x = LANES) in;  // grid: (chunks, slots)
layout(constant_id = 0) const uint CHUNK = 2048;

layout(push_constant) uniform P {
    Slots slots;
    Counts counts;
    uint vocab;
} p;

void main() {
    uint slot = p.slots.slots[gl_WorkGroupID.y];
    if (slot == NO_SLOT) return;
    uint start = gl_WorkGroupID.x * CHUNK;
    uint end = min(start + CHUNK, p.vocab);
    for (uint id = start + gl_LocalInvocationID.x; id < end; id += LANES) p.counts.counts[slot * p.vocab + id] = 0;
}

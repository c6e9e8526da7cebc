#version 460
// Marks tokens in the table of what the sequences with penalties have seen. A lane owns one entry of the list.
#extension GL_EXT_buffer_reference : require
#extension GL_GOOGLE_include_directive : require
#include "include/sample.glsl"

struct Mark {
    uint state_index;  // NO_STATE = nothing to do
    uint token;  // bit 31 = a token of the output, else of the prompt
};

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Marks { Mark marks[]; };  // (marks)

const uint LANES = 64;
layout(local_size_x = LANES) in;  // grid: (marks / LANES)

layout(push_constant) uniform P {
    Marks marks;
    Counts counts;
    uint num_marks;
    uint vocab;
} p;

void main() {
    uint index = gl_GlobalInvocationID.x;
    if (index >= p.num_marks) return;
    Mark mark = p.marks.marks[index];
    uint token = mark.token & 0x7fffffffu;
    if (mark.state_index == NO_STATE || token >= p.vocab) return;
    uint place = mark.state_index * p.vocab + token;
    if (token != mark.token) {
        atomicAdd(p.counts.counts[place], 1);
    } else {
        atomicOr(p.counts.counts[place], IN_PROMPT);
    }
}

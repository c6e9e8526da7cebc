#version 460
// Second half of greedy sampling: the best of a row's chunks becomes its token. A workgroup owns one row.
#extension GL_EXT_buffer_reference : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "include/sample.glsl"

const uint LANES = 64;
layout(local_size_x = LANES) in;  // grid: (rows)

layout(push_constant) uniform P {
    Rows rows;
    Parts parts;
    LastToken last_token;
    Results results;
    uint num_chunks;
} p;

#include "include/sample_best.glsl"

void main() {
    uint row = gl_WorkGroupID.x;
    uint state_index = p.rows.rows[row].state_index;
    if (state_index == NO_STATE) return;
    Best best = Best(0, NO_TOKEN);
    for (uint chunk = gl_LocalInvocationID.x; chunk < p.num_chunks; chunk += LANES) {
        uint part = row * p.num_chunks + chunk;
        best = better(best, Best(p.parts.parts[part].key, p.parts.parts[part].id));
    }
    best = workgroup_best(best);
    if (gl_LocalInvocationID.x == 0) {
        p.last_token.tokens[state_index] = best.id;
        p.results.results[row].token = best.id;
        p.results.results[row].logprob = 0.0;
        p.results.results[row].num_top = 0;
    }
}

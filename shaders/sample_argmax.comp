#version 460
// First half of greedy sampling: the largest logit of a chunk of a row. A workgroup owns one chunk.
#extension GL_EXT_buffer_reference : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "include/sample.glsl"

const uint LANES = 128;
layout(local_size_x = LANES) in;  // grid: (chunks, rows)
layout(constant_id = 0) const uint CHUNK = 2048;
layout(constant_id = 1) const uint MASKED = 0;  // 1 = rows may have masks

layout(push_constant) uniform P {
    Logits logits;
    Rows rows;
    Parts parts;
    Masks masks;
    uint vocab;
} p;

#include "include/sample_best.glsl"

void main() {
    uint row = gl_WorkGroupID.y;
    if (p.rows.rows[row].state_index == NO_STATE) return;
    uint mask = MASKED != 0 ? p.rows.rows[row].mask : NO_MASK;
    uint start = gl_WorkGroupID.x * CHUNK;
    uint end = min(start + CHUNK, p.vocab);
    Best best = Best(0, NO_TOKEN);
    for (uint id = start + gl_LocalInvocationID.x; id < end; id += LANES) {
        if (MASKED != 0 && !is_allowed(p.masks, mask, p.vocab, id)) continue;
        uint key = key_of(clean(p.logits.logits[row * p.vocab + id]));
        if (key > best.key) best = Best(key, id);
    }
    best = workgroup_best(best);
    if (gl_LocalInvocationID.x == 0) {
        uint part = row * gl_NumWorkGroups.x + gl_WorkGroupID.x;
        p.parts.parts[part].key = best.key;
        p.parts.parts[part].id = best.id;
    }
}

#version 460
// First pass of the full sampler over a chunk of a row: the best token before and after penalties, and, where
// log-probabilities are wanted, the chunk's sum of exponentials. A workgroup owns one chunk.
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
    Counts counts;
    Parts parts;
    Masks masks;
    uint vocab;
    uint has_counts;
} p;

#include "include/sample_best.glsl"
#include "include/sample_math.glsl"
#include "include/sample_seen.glsl"

shared float sums[LANES];

// The same order of additions on every device, so that a log-probability is reproducible to the bit.
float workgroup_sum(float own) {
    uint lane = gl_LocalInvocationID.x;
    sums[lane] = own;
    barrier();
    precise float sum = 0.0;
    if (lane < 8) {
        for (uint i = lane; i < LANES; i += 8) sum += sums[i];
    }
    barrier();
    if (lane < 8) sums[lane] = sum;
    barrier();
    sum = 0.0;
    for (uint i = 0; i < 8; ++i) sum += sums[i];
    return sum;
}

float chunk_sum(uint row, uint mask, uint start, uint end, uint max_key) {
    float largest = value_of(max_key);
    precise float sum = 0.0;
    for (uint id = start + gl_LocalInvocationID.x; id < end; id += LANES) {
        if (MASKED != 0 && !is_allowed(p.masks, mask, p.vocab, id)) continue;
        float logit = clean(p.logits.logits[row * p.vocab + id]);
        sum += key_of(logit) == max_key ? 1.0 : exp_of(logit - largest);
    }
    return workgroup_sum(sum);
}

void main() {
    uint row = gl_WorkGroupID.y;
    Row r = p.rows.rows[row];
    if (r.state_index == NO_STATE) return;
    uint start = gl_WorkGroupID.x * CHUNK;
    uint end = min(start + CHUNK, p.vocab);
    bool has_penalties = r.penalised != 0 && p.has_counts != 0;
    if (has_penalties) gather_proposed(p.rows, row, r.proposal);
    Best raw = Best(0, NO_TOKEN);
    Best best = raw;
    for (uint id = start + gl_LocalInvocationID.x; id < end; id += LANES) {
        if (MASKED != 0 && !is_allowed(p.masks, r.mask, p.vocab, id)) continue;
        float logit = p.logits.logits[row * p.vocab + id];
        uint key = key_of(clean(logit));
        if (key > raw.key) raw = Best(key, id);
        if (has_penalties) {
            key = key_of(penalised(logit, r, seen(p.counts.counts[r.state_index * p.vocab + id], id)));
            if (key > best.key) best = Best(key, id);
        }
    }
    raw = workgroup_best(raw);
    best = has_penalties ? workgroup_best(best) : raw;
    float sum = r.top_logprobs >= 0 ? chunk_sum(row, r.mask, start, end, raw.key) : 0.0;
    if (gl_LocalInvocationID.x == 0) {
        uint part = row * gl_NumWorkGroups.x + gl_WorkGroupID.x;
        p.parts.parts[part].raw_key = raw.key;
        p.parts.parts[part].raw_id = raw.id;
        p.parts.parts[part].raw_sum = sum;
        p.parts.parts[part].key = best.key;
        p.parts.parts[part].id = best.id;
    }
}

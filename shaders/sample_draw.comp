#version 460
// Random choice within a chunk of a row by the Gumbel-max trick: the largest sum of scaled logit and noise. The noise is
// a function of seed, position and token alone, so neither neighbours nor the grid change a draw. A workgroup owns one
// chunk.
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
    RowBounds row_bounds;
    Masks masks;
    uint vocab;
    uint has_counts;
} p;

#include "include/sample_best.glsl"
#include "include/sample_math.glsl"
#include "include/sample_seen.glsl"

void main() {
    uint row = gl_WorkGroupID.y;
    Row r = p.rows.rows[row];
    if (r.state_index == NO_STATE || r.inverse_temperature == 0.0) return;
    Bounds bounds = p.row_bounds.bounds[row];
    float largest = value_of(bounds.max_key);
    bool has_penalties = r.penalised != 0 && p.has_counts != 0;
    if (has_penalties) gather_proposed(p.rows, row, r.proposal);
    uint start = gl_WorkGroupID.x * CHUNK;
    uint end = min(start + CHUNK, p.vocab);
    Best best = Best(0, NO_TOKEN);
    for (uint id = start + gl_LocalInvocationID.x; id < end; id += LANES) {
        if (MASKED != 0 && !is_allowed(p.masks, r.mask, p.vocab, id)) continue;
        float logit = clean(p.logits.logits[row * p.vocab + id]);
        if (has_penalties) logit = penalised(logit, r, seen(p.counts.counts[r.state_index * p.vocab + id], id));
        uint key = key_of(logit);
        if (key < bounds.threshold) continue;
        precise float d = key == bounds.max_key ? 0.0 : (logit - largest) * r.inverse_temperature;
        if (d < r.log_min_p) continue;
        precise float score = d + gumbel(philox(uvec4(id, r.position, 0, 0), uvec2(r.seed_low, r.seed_high)));
        uint draw_key = key_of(score);
        if (draw_key > best.key) best = Best(draw_key, id);
    }
    best = workgroup_best(best);
    if (gl_LocalInvocationID.x == 0) {
        uint part = row * gl_NumWorkGroups.x + gl_WorkGroupID.x;
        p.parts.parts[part].draw_key = best.key;
        p.parts.parts[part].draw_id = best.id;
    }
}

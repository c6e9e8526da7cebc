#version 460
// A row's token from its chunks' candidates, its log-probability and the most probable tokens. A workgroup owns one row.
//
// The most probable tokens are found one after the other: each is the best of the chunks' best, after which its chunk is
// searched for the next.
#extension GL_EXT_buffer_reference : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "include/sample.glsl"

const uint LANES = 128;
layout(local_size_x = LANES) in;  // grid: (rows)
layout(constant_id = 0) const uint CHUNK = 2048;
layout(constant_id = 1) const uint MASKED = 0;  // 1 = rows may have masks

layout(push_constant) uniform P {
    Logits logits;
    Rows rows;
    Counts counts;
    Parts parts;
    RowBounds row_bounds;
    LastToken last_token;
    Results results;
    Masks masks;
    uint vocab;
    uint num_chunks;
    uint has_counts;
} p;

#include "include/sample_best.glsl"
#include "include/sample_math.glsl"

uint row;

Best best_draw() {
    Best best = Best(0, NO_TOKEN);
    for (uint chunk = gl_LocalInvocationID.x; chunk < p.num_chunks; chunk += LANES) {
        uint part = row * p.num_chunks + chunk;
        best = better(best, Best(p.parts.parts[part].draw_key, p.parts.parts[part].draw_id));
    }
    return workgroup_best(best);
}

Best best_raw() {
    Best best = Best(0, NO_TOKEN);
    for (uint chunk = gl_LocalInvocationID.x; chunk < p.num_chunks; chunk += LANES) {
        uint part = row * p.num_chunks + chunk;
        best = better(best, Best(p.parts.parts[part].raw_key, p.parts.parts[part].raw_id));
    }
    return workgroup_best(best);
}

// ln of the sum of exp(logit - largest logit); in lane 0 alone.
float log_sum(uint max_key) {
    if (gl_LocalInvocationID.x != 0) return 0.0;
    precise float sum = 0.0;
    for (uint chunk = 0; chunk < p.num_chunks; ++chunk) {
        uint part = row * p.num_chunks + chunk;
        uint key = p.parts.parts[part].raw_key;
        if (MASKED != 0 && key == 0) continue;  // nothing of the chunk may come
        float scale = key == max_key ? 1.0 : exp_of(value_of(key) - value_of(max_key));
        sum += p.parts.parts[part].raw_sum * scale;
    }
    return log_of(sum);
}

float logprob_of(uint key, uint max_key, float log_sum) {
    return (key == max_key ? 0.0 : value_of(key) - value_of(max_key)) - log_sum;
}

// The chunk's best token below `found` takes its place among the chunks' best.
void search_below(Best found, uint mask) {
    uint chunk = found.id / CHUNK;
    uint end = min((chunk + 1) * CHUNK, p.vocab);
    Best best = Best(0, NO_TOKEN);
    for (uint id = chunk * CHUNK + gl_LocalInvocationID.x; id < end; id += LANES) {
        if (MASKED != 0 && !is_allowed(p.masks, mask, p.vocab, id)) continue;
        uint key = key_of(clean(p.logits.logits[row * p.vocab + id]));
        bool below = key < found.key || (key == found.key && id > found.id);
        if (below && key > best.key) best = Best(key, id);
    }
    best = workgroup_best(best);
    // The lane that writes is the one that reads it in best_raw.
    if (gl_LocalInvocationID.x == chunk % LANES) {
        p.parts.parts[row * p.num_chunks + chunk].raw_key = best.key;
        p.parts.parts[row * p.num_chunks + chunk].raw_id = best.id;
    }
}

void list_top(uint wanted, Best first, float log_sum, uint mask) {
    Best found = first;
    uint count = 0;
    while (count < wanted && found.key != 0) {
        if (gl_LocalInvocationID.x == 0) {
            p.results.results[row].top_ids[count] = found.id;
            p.results.results[row].top_logprobs[count] = logprob_of(found.key, first.key, log_sum);
        }
        ++count;
        if (count == wanted) break;
        search_below(found, mask);
        found = best_raw();
    }
    if (gl_LocalInvocationID.x == 0) p.results.results[row].num_top = count;
}

void main() {
    row = gl_WorkGroupID.x;
    Row r = p.rows.rows[row];
    if (r.state_index == NO_STATE) return;
    uint token = r.inverse_temperature == 0.0 ? p.row_bounds.bounds[row].max_id : best_draw().id;
    if (gl_LocalInvocationID.x == 0) {
        p.last_token.tokens[r.state_index] = token;
        p.results.results[row].token = token;
        p.results.results[row].logprob = 0.0;
        p.results.results[row].num_top = 0;
        if (r.penalised == COUNTS && p.has_counts != 0) atomicAdd(p.counts.counts[r.state_index * p.vocab + token], 1);
    }
    if (r.top_logprobs < 0) return;
    Best first = best_raw();
    float sum = log_sum(first.key);
    barrier();  // lane 0 has read the chunks' best before any is replaced
    if (gl_LocalInvocationID.x == 0) {
        uint key = key_of(clean(p.logits.logits[row * p.vocab + token]));
        p.results.results[row].logprob = logprob_of(key, first.key, sum);
    }
    list_top(min(uint(r.top_logprobs), MAX_TOP), first, sum, r.mask);
}

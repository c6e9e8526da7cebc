#version 460
// Mamba-2's recurrence, token by token: S = decay * S + B (step * x)^T, y = C S + skip * x, in a sequence's state; B are keys, C
// queries and x values. A workgroup owns WORKGROUP / LANES columns of one head's S (along x) for the runs of tokens whose first is
// one of ROWS rows (along y), with CHUNKED without those that are long. LANES neighbouring lanes hold a column, each VECTORS times
// four of its elements.
// Source: Transformers are SSMs (arXiv 2405.21060), section 2.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "include/pointers.glsl"
#include "include/run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint LANES = 4;
layout(constant_id = 2) const uint VECTORS = 8;
layout(constant_id = 3) const uint KEY_HEADS = 1;
layout(constant_id = 4) const uint VALUE_HEADS = 1;
layout(constant_id = 5) const uint VALUE_DIM = 64;
layout(constant_id = 6) const bool RATES = false; // they are below zero, not their logarithms
layout(constant_id = 7) const uint ROWS = 1;
layout(constant_id = 8) const bool CHUNKED = false; // long runs are ssm_chunk's and ssm_chunks'

#include "include/ssm_gates.glsl"
#include "include/long_run.glsl"

layout(push_constant, scalar) uniform P {
    Vec4s xbc; // (tokens, row_columns): values, keys, queries, as ssm_conv leaves them
    Floats steps; // (tokens, step_columns), of which the first VALUE_HEADS are steps before their softplus
    Floats rates; // (VALUE_HEADS)
    Floats step_bias; // (VALUE_HEADS)
    Floats skips; // (VALUE_HEADS)
    uint64_t state; // of each sequence state_bytes, of which (VALUE_HEADS, VALUE_DIM, key elements) from state_offset on
    Runs runs; // (tokens)
    Uints positions; // (tokens)
    Floats y; // (tokens, VALUE_HEADS, VALUE_DIM)
    uint row_columns; // in vec4s
    uint step_columns;
    uint state_bytes;
    uint state_offset;
    uint num_rows;
    float least_step;
    float most_step;
} p;

#include "include/short_runs.glsl"

const uint KEY_VECTORS = LANES * VECTORS;
const uint COLUMNS = WORKGROUP / LANES;

float over_lanes(float value) {
    for (uint step = 1; step < LANES; step *= 2)
        value += subgroupShuffleXor(value, step);
    return value;
}

void store(uint64_t state, vec4 s[VECTORS], uint wanted) {
    if (wanted < VALUE_DIM)
        [[unroll]] for (uint v = 0; v < VECTORS; ++v)
            (Vec4s(state) + v * LANES).v = s[v];
}

void recur(uint row, Run run) {
    uint slices = (VALUE_DIM + COLUMNS - 1) / COLUMNS;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint head = gl_WorkGroupID.x / slices, part = lane % LANES;
    uint wanted = gl_WorkGroupID.x % slices * COLUMNS + lane / LANES;
    uint column = min(wanted, VALUE_DIM - 1); // past the end the last one is computed again
    uint64_t states = p.state + p.state_offset + 16 * ((uint64_t(head) * VALUE_DIM + column) * KEY_VECTORS + part);
    Vec4s source = Vec4s(states + uint64_t(run.source) * p.state_bytes);
    vec4 s[VECTORS];
    bool is_fresh = (p.positions + row).v == 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v)
        s[v] = is_fresh ? vec4(0) : (source + v * LANES).v;
    float rate = (p.rates + head).v, bias = (p.step_bias + head).v, skip = (p.skips + head).v;
    bool is_last = false;
    for (; !is_last; ++row) {
        Run here = (p.runs + row).v;
        is_last = (here.offset & LAST_OF_RUN) != 0;
        Vec4s row_at = p.xbc + uint64_t(row) * p.row_columns;
        float value = (Floats(uint64_t(row_at)) + head * VALUE_DIM + column).v;
        Vec4s k = row_at + VALUE_HEADS * VALUE_DIM / 4 + key_head_of(head) * KEY_VECTORS + part;
        Vec4s q = k + KEY_HEADS * KEY_VECTORS;
        float size = step_of((p.steps + uint64_t(row) * p.step_columns + head).v + bias, vec2(p.least_step, p.most_step));
        float decay = exp(log_decay(rate, size)), added = size * value;
        vec4 found = vec4(0);
        [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
            s[v] = fma((k + v * LANES).v, vec4(added), s[v] * decay);
            found = fma((q + v * LANES).v, s[v], found);
        }
        float total = over_lanes(dot(found, vec4(1)));
        if (part == 0 && wanted < VALUE_DIM)
            (p.y + (uint64_t(row) * VALUE_HEADS + head) * VALUE_DIM + column).v = fma(skip, value, total);
        if (is_last)
            store(states + uint64_t(run.state_index) * p.state_bytes, s, wanted);
        if (here.kept != NO_STATE)
            store(states + uint64_t(here.kept) * p.state_bytes, s, wanted);
    }
}

void main() {
    uint begin = gl_WorkGroupID.y * ROWS;
    for (uint runs = runs_from(begin); runs != 0; runs &= runs - 1) {
        uint row = begin + findLSB(runs);
        recur(row, (p.runs + row).v);
    }
}

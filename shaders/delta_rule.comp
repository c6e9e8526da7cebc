#version 460
// The gated delta rule, token by token: S = decay * S, S += beta * k (v - k S)^T, y = q S, in a sequence's state. A workgroup owns
// WORKGROUP / LANES columns of one head's S (along x) for the runs of tokens whose first is one of ROWS rows (along y), with
// CHUNKED without those that are long. LANES neighbouring lanes hold a column, each VECTORS times four of its elements.
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
layout(constant_id = 5) const uint VALUE_DIM = 128;
layout(constant_id = 6) const bool TILED = false; // head p of values belongs to head p mod KEY_HEADS of keys, else neighbours to one
layout(constant_id = 7) const bool RATES = false; // decays are the rates, below zero, not their logarithms
layout(constant_id = 8) const uint ROWS = 1;
layout(constant_id = 9) const bool CHUNKED = false; // long runs are delta_chunk's and delta_chunks'

#include "include/delta_gates.glsl"
#include "include/long_run.glsl"

layout(push_constant, scalar) uniform P {
    Vec4s qkv; // (tokens, row_columns): queries, keys, values, as delta_conv leaves them
    Floats ba; // (tokens, 2, VALUE_HEADS): beta before its sigmoid, the decay's before its softplus
    Floats decays; // (VALUE_HEADS)
    Floats decay_bias; // (VALUE_HEADS)
    uint64_t state; // of each sequence state_bytes, of which (VALUE_HEADS, VALUE_DIM, key elements) from state_offset on
    Runs runs; // (tokens)
    Uints positions; // (tokens)
    Floats y; // (tokens, VALUE_HEADS, VALUE_DIM)
    uint row_columns; // in vec4s
    uint state_bytes;
    uint state_offset;
    uint num_rows;
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
    uint key_head = key_head_of(head);
    uint64_t states = p.state + p.state_offset + 16 * ((uint64_t(head) * VALUE_DIM + column) * KEY_VECTORS + part);
    Vec4s source = Vec4s(states + uint64_t(run.source) * p.state_bytes);
    vec4 s[VECTORS];
    bool is_fresh = (p.positions + row).v == 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v)
        s[v] = is_fresh ? vec4(0) : (source + v * LANES).v;
    float rate = (p.decays + head).v, bias = (p.decay_bias + head).v;
    bool is_last = false;
    for (; !is_last; ++row) {
        Run here = (p.runs + row).v;
        is_last = (here.offset & LAST_OF_RUN) != 0;
        Vec4s q = p.qkv + uint64_t(row) * p.row_columns + key_head * KEY_VECTORS + part;
        Vec4s k = q + KEY_HEADS * KEY_VECTORS;
        Floats values = Floats(uint64_t(p.qkv + uint64_t(row) * p.row_columns + 2 * KEY_HEADS * KEY_VECTORS));
        float value = (values + head * VALUE_DIM + column).v;
        Floats ba = p.ba + uint64_t(row) * (2 * VALUE_HEADS) + head;
        float beta = beta_of(ba.v);
        float decay = exp(log_decay(rate, (ba + VALUE_HEADS).v + bias));
        vec4 keys[VECTORS];
        vec4 found = vec4(0);
        [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
            keys[v] = (k + v * LANES).v;
            s[v] *= decay;
            found = fma(keys[v], s[v], found);
        }
        float delta = beta * (value - over_lanes(dot(found, vec4(1))));
        vec4 result = vec4(0);
        [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
            s[v] = fma(keys[v], vec4(delta), s[v]);
            result = fma((q + v * LANES).v, s[v], result);
        }
        float total = over_lanes(dot(result, vec4(1)));
        if (part == 0 && wanted < VALUE_DIM)
            (p.y + (uint64_t(row) * VALUE_HEADS + head) * VALUE_DIM + column).v = total;
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

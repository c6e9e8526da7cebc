#version 460
// RWKV-7's recurrence, token by token: each row of a head's state is s = s * decay - (s . direction) * b + v * k, and y = s . r. A
// workgroup owns WORKGROUP / LANES rows of one head's state (along x) for the runs of tokens whose first is one of ROWS rows of the
// step (along y), with CHUNKED without those that are long. LANES neighbouring lanes hold a row, each VECTORS times four of its
// elements.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "include/pointers.glsl"
#include "include/run.glsl"
#include "include/long_run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint LANES = 4;
layout(constant_id = 2) const uint VECTORS = 4;
layout(constant_id = 3) const uint ROWS = 1;
layout(constant_id = 4) const bool CHUNKED = false; // long runs are time_mix_chunk's and time_mix_chunks'

layout(push_constant, scalar) uniform P {
    Vec4s r; // (tokens, heads, KEY_VECTORS), as all others
    Vec4s w; // decays
    Vec4s k;
    Vec4s direction;
    Vec4s b;
    Floats v; // (tokens, heads, 4 * KEY_VECTORS)
    uint64_t state; // of each sequence state_bytes, of which (heads, 4 * KEY_VECTORS, KEY_VECTORS) from state_offset on
    Runs runs; // (tokens)
    Uints positions; // (tokens)
    Floats y; // (tokens, heads, 4 * KEY_VECTORS)
    uint columns; // heads * KEY_VECTORS
    uint state_bytes;
    uint state_offset;
    uint num_rows;
} p;

#include "include/short_runs.glsl"

const uint KEY_VECTORS = LANES * VECTORS;
const uint DIM = 4 * KEY_VECTORS;
const uint OWNED = WORKGROUP / LANES;

float over_lanes(float value) {
    for (uint step = 1; step < LANES; step *= 2)
        value += subgroupShuffleXor(value, step);
    return value;
}

void store(uint64_t state, vec4 s[VECTORS]) {
    [[unroll]] for (uint n = 0; n < VECTORS; ++n)
        (Vec4s(state) + n * LANES).v = s[n];
}

void recur(uint row, Run run) {
    uint slices = DIM / OWNED;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint head = gl_WorkGroupID.x / slices, part = lane % LANES;
    uint element = gl_WorkGroupID.x % slices * OWNED + lane / LANES; // of the value
    uint64_t states = p.state + p.state_offset + 16 * ((uint64_t(head) * DIM + element) * KEY_VECTORS + part);
    Vec4s source = Vec4s(states + uint64_t(run.source) * p.state_bytes);
    bool is_fresh = (p.positions + row).v == 0;
    vec4 s[VECTORS];
    [[unroll]] for (uint n = 0; n < VECTORS; ++n)
        s[n] = is_fresh ? vec4(0) : (source + n * LANES).v;
    bool is_last = false;
    for (; !is_last; ++row) {
        Run here = (p.runs + row).v;
        is_last = (here.offset & LAST_OF_RUN) != 0;
        uint64_t at = uint64_t(row) * p.columns + head * KEY_VECTORS + part;
        uint64_t value_at = uint64_t(row) * (4 * p.columns) + head * DIM + element;
        vec4 found = vec4(0);
        [[unroll]] for (uint n = 0; n < VECTORS; ++n)
            found = fma(s[n], (p.direction + at + n * LANES).v, found);
        float taken = over_lanes(dot(found, vec4(1))), value = (p.v + value_at).v;
        vec4 result = vec4(0);
        [[unroll]] for (uint n = 0; n < VECTORS; ++n) {
            s[n] = fma(s[n], (p.w + at + n * LANES).v, value * (p.k + at + n * LANES).v);
            s[n] = fma(vec4(-taken), (p.b + at + n * LANES).v, s[n]);
            result = fma(s[n], (p.r + at + n * LANES).v, result);
        }
        float total = over_lanes(dot(result, vec4(1)));
        if (part == 0)
            (p.y + value_at).v = total;
        if (is_last)
            store(states + uint64_t(run.state_index) * p.state_bytes, s);
        if (here.kept != NO_STATE)
            store(states + uint64_t(here.kept) * p.state_bytes, s);
    }
}

void main() {
    uint begin = gl_WorkGroupID.y * ROWS;
    for (uint runs = runs_from(begin); runs != 0; runs &= runs - 1) {
        uint row = begin + findLSB(runs);
        recur(row, (p.runs + row).v);
    }
}

#version 460
// What short convolutions of later steps need of this one: a sequence's last TAPS - 1 values of B * x. A workgroup owns WORKGROUP
// times four columns (along x) of one row (along y), and does nothing unless that is the last of its sequence, or its state is kept.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/run.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint TAPS = 3;

layout(push_constant, scalar) uniform P {
    Vec4s projected; // (tokens, 3, 4 * columns): B, C, x
    Vec4s state; // (states, TAPS - 1, 4 * columns): B * x, the oldest first
    Runs runs; // (tokens)
    uint columns; // in vec4s
} p;

void main() {
    uint row = gl_WorkGroupID.y, i = gl_GlobalInvocationID.x;
    Run run = (p.runs + row).v;
    bool is_last = (run.offset & LAST_OF_RUN) != 0, is_kept = run.kept != NO_STATE;
    if (run.state_index == NO_STATE || !(is_last || is_kept) || i >= p.columns)
        return;
    uint offset = run.offset & ~LAST_OF_RUN;
    Vec4s here = p.projected + uint64_t(row) * (3 * p.columns) + i;
    Vec4s source = p.state + uint64_t(run.source) * ((TAPS - 1) * p.columns) + i;
    Vec4s state = p.state + uint64_t(run.state_index) * ((TAPS - 1) * p.columns) + i;
    Vec4s kept = p.state + uint64_t(is_kept ? run.kept : run.state_index) * ((TAPS - 1) * p.columns) + i;
    // From the oldest on: what moves comes from behind the place that it goes to.
    [[unroll]] for (uint age = TAPS - 1; age-- > 0;) {
        uint to = TAPS - 2 - age;
        vec4 product;
        if (age <= offset) {
            Vec4s at = here - uint64_t(age) * (3 * p.columns);
            product = at.v * (at + 2 * p.columns).v;
        } else {
            product = (source + uint64_t(to + 1 + offset) * p.columns).v;
        }
        if (is_last)
            (state + uint64_t(to) * p.columns).v = product;
        if (is_kept)
            (kept + uint64_t(to) * p.columns).v = product;
    }
}

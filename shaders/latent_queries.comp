#version 460
// Queries of latent attention before their product with latents: of each head, what meets them goes into a row of its own, in the
// form that the product reads, and what has a position is rotated, and stored behind the product's place. Both are scaled.
// One workgroup owns one head (x) of one token (y).
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint VECTORS = 1; // of a lane: WORKGROUP times as many hold PLAIN_DIM elements
layout(constant_id = 2) const uint PLAIN_DIM = 64; // elements of a head that have no position
layout(constant_id = 3) const uint ROTARY_DIM = 32; // those behind them, a multiple of 8
layout(constant_id = 4) const uint LATENT = 128; // what the product makes of the former
layout(constant_id = 5) const bool IS_INTERLEAVED = true; // rotary pairs are neighbours, else they lie in halves
layout(constant_id = 6) const float AMPLITUDE = 1;
layout(constant_id = 7) const uint ROTARY_PAIRS = 0;
layout(constant_id = 8) const float Q_GROWTH = 0;
layout(constant_id = 9) const uint Q_PERIOD = 1;

layout(push_constant, scalar) uniform P {
    Vec4s q; // (tokens, row_columns): heads of PLAIN_DIM and then ROTARY_DIM elements
    OutValues y; // (tokens * heads, PLAIN_DIM), in the form
    OutScales y_scale;
    OutCounters counters;
    Vec4s rotated; // (tokens, heads, LATENT + ROTARY_DIM)
    Uvec2s freqs; // (ROTARY_DIM / 2), as in rope_cache
    Uints positions; // (tokens)
    uint row_columns; // in vec4s
    uint num_counters;
    float q_scale;
} p;

#include "include/latent_rotation.glsl"

void main() {
    uint head = gl_WorkGroupID.x, token = gl_WorkGroupID.y;
    uint row = token * gl_NumWorkGroups.x + head;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint position = (p.positions + token).v;
    float scale = query_scale(p.q_scale, position);
    const uint columns = PLAIN_DIM / 4;
    Vec4s source = p.q + (uint64_t(token) * p.row_columns + head * (columns + ROTARY_DIM / 4));

    vec4 values[VECTORS];
    vec4 sizes = vec4(0);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        values[v] = i < columns ? scale * (source + i).v : vec4(0);
        sizes = max(sizes, abs(values[v]));
    }
    Vec4s target = p.rotated + (uint64_t(row) * ((LATENT + ROTARY_DIM) / 4) + LATENT / 4);
    for (uint i = lane; i < ROTARY_DIM / 4; i += WORKGROUP)
        (target + i).v = scale * rotated_quad(source + columns, p.freqs, position, i);

    float largest = NEEDS_LARGEST ? workgroup_max(max(max(sizes.x, sizes.y), max(sizes.z, sizes.w))) : 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        if (i < columns)
            store_part(p.y, p.y_scale, row, columns, i, values[v], largest);
    }
    finish_row(p.y_scale, p.counters, row, p.num_counters, lane, WORKGROUP, largest);
}

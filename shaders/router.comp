#version 460
// A router's product of up to TOKENS tokens, and from it the experts of each and their sorted pairs, as route.comp has them. A
// workgroup owns a row of the router, whose columns its lanes share; the last one to be done has all logits, and chooses. None
// waits for another.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "include/expert_rows.glsl"
#include "include/pointers.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(constant_id = 1) const uint EXPERTS = 8;
layout(constant_id = 2) const uint K = 2;
layout(constant_id = 3) const uint PER_LANE = 1;    // experts over the lanes of the smallest subgroup
layout(constant_id = 4) const bool SIGMOID = false; // scores are sigmoids of logits, otherwise their softmax
layout(constant_id = 5) const bool NORMALISE = false; // the weights of a token add up to the scale
layout(constant_id = 6) const bool HAS_BIAS = false; // added to scores where experts are chosen, not to weights
layout(constant_id = 7) const uint GROUPS = 1;      // of neighbouring experts
layout(constant_id = 8) const uint GROUPS_KEPT = 1; // those whose two best scores add up to most, or as BY_BEST has it
layout(constant_id = 9) const bool SORTS = true;
layout(constant_id = 10) const uint TILE = 1;       // pairs of a tile, if it SORTS
layout(constant_id = 11) const uint ROOM = 1;
layout(constant_id = 12) const bool HAS_SCALES = false; // of experts, which weights are multiplied by in the end
layout(constant_id = 13) const uint TOKENS = 1;
layout(constant_id = 14) const uint MAX_SUBGROUPS = 32;
layout(constant_id = 15) const bool HAS_ROUTER_BIAS = false; // added to logits
layout(constant_id = 16) const bool BY_BEST = false; // groups go by their best score alone
layout(local_size_x = 32, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Chosen { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Logits { float v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counter { uint v; };

layout(push_constant, scalar) uniform P {
    Vec4s x;        // (tokens, columns)
    Vec4s router;   // (EXPERTS, columns)
    Floats router_bias; // (EXPERTS), read if HAS_ROUTER_BIAS
    Logits logits;  // (tokens, stride)
    Counter done;   // workgroups: zero, and zero again afterwards
    Floats bias;    // from here on as in route.comp
    Floats scales;
    Chosen chosen;
    Floats weights;
    OutOrder order;
    OutTiles tiles;
    uint columns;   // vec4s of a row
    uint tokens;
    uint stride;
    float scale;
    uint num_tiles;
} p;

#include "include/routing.glsl"

shared float partials[MAX_SUBGROUPS * TOKENS];
shared bool is_last;

void multiply(uint row) {
    float sums[TOKENS];
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        sums[t] = 0.0;
    }
    for (uint column = gl_LocalInvocationID.x; column < p.columns; column += WORKGROUP) {
        const vec4 factor = (p.router + (row * p.columns + column)).v;
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            sums[t] += dot(factor, (p.x + (min(t, p.tokens - 1) * p.columns + column)).v);
        }
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        sums[t] = subgroupAdd(sums[t]);
        if (subgroupElect()) {
            partials[gl_SubgroupID * TOKENS + t] = sums[t];
        }
    }
    barrier();
    for (uint token = gl_LocalInvocationID.x; token < p.tokens; token += WORKGROUP) {
        float sum = HAS_ROUTER_BIAS ? (p.router_bias + row).v : 0.0;
        for (uint s = 0; s < gl_NumSubgroups; s++) {
            sum += partials[s * TOKENS + token];
        }
        (p.logits + (token * p.stride + row)).v = sum;
    }
}

// Counts this workgroup as done once its logits can be seen; whether it is the last one.
bool ends() {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0) {
        is_last = atomicAdd(p.done.v, 1) == gl_NumWorkGroups.x - 1;
        if (is_last) {
            p.done.v = 0;
        }
    }
    barrier();
    memoryBarrierBuffer();
    return is_last;
}

void main() {
    multiply(gl_WorkGroupID.x);
    if (!ends()) {
        return;
    }
    forget_users();
    for (uint token = gl_SubgroupID; token < p.tokens; token += gl_NumSubgroups) {
        route(token);
    }
    sort_pairs();
}

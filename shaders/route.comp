#version 460
// The experts of each token: the K with the largest scores, by falling score, of equal ones the lower number first, and what
// their outputs are multiplied by. A subgroup owns a token at a time, and a lane PER_LANE experts at most. A score that is no
// number is the smallest of all, so that whatever logits are, an expert is one of those that there are.
// SORTS: one workgroup has all tokens, 32 of ROOM pairs at most, and sorts the pairs as expert_tiles does. A token takes an
// expert once, so that a word has an expert's tokens.
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
layout(constant_id = 9) const bool SORTS = false;
layout(constant_id = 10) const uint TILE = 1;       // pairs of a tile, if it SORTS
layout(constant_id = 11) const uint ROOM = 1;
layout(constant_id = 12) const bool HAS_SCALES = false; // of experts, which weights are multiplied by in the end
layout(constant_id = 13) const bool BY_BEST = false; // groups go by their best score alone
layout(local_size_x = 32, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Chosen { uint v[]; };

layout(push_constant, scalar) uniform P {
    Floats logits;  // (tokens, stride)
    Floats bias;    // (EXPERTS), read if HAS_BIAS
    Floats scales;  // (EXPERTS), read if HAS_SCALES
    Chosen chosen;  // (tokens, K)
    Floats weights; // (tokens, K)
    OutOrder order; // (tokens * K), if it SORTS
    OutTiles tiles; // (num_tiles), if it SORTS
    uint tokens;
    uint stride;
    float scale;    // of the weights
    uint num_tiles;
} p;

#include "include/routing.glsl"

void main() {
    if (SORTS) {
        forget_users();
    }
    const uint step = gl_NumWorkGroups.x * gl_NumSubgroups;
    for (uint token = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID; token < p.tokens; token += step) {
        route(token);
    }
    if (SORTS) {
        sort_pairs();
    }
}

// y (T, N) = scale (T) * (xh (T, K) · weight (N, K)^T) + bias (N) for quantised weights and many tokens, on 16×16×16 matrix
// units: half × half, summed in single. Weights become halves on their way into shared memory.
// A workgroup owns TILE_T tokens (along x), TILE_N weight rows (along y) and one of SPLITS parts of K (along z); its
// SUBGROUPS_T × SUBGROUPS_N subgroups own equal parts of the tile. The next tile of K is on its way into registers while
// the present one is multiplied. Of the workgroups that share a tile, the last to finish adds up what all have left.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#include BLOCKS
#include "include/soft_cap.glsl"
#define BLOCK 32
#include "coopmat/tiles.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Halves { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Floats { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer Partials { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counters { uint v[]; };

layout(push_constant, scalar) uniform P {
    Halves xh;          // (tokens, blocks, 32)
    Floats scale;       // (tokens)
    Quants quants;      // (n, blocks)
    High high;          // (n, blocks)
    Scales scales;      // (n, blocks)
    Floats bias;        // (n), read if HAS_BIAS
    Output y;           // (tokens, stride)
    Partials partials;  // (tiles, SPLITS, TILE_T, TILE_N), used if SPLITS > 1
    Counters counters;  // (tiles), zeros, and zeros again afterwards
    uint tokens;
    uint n;
    uint blocks;        // k / 32
    uint stride;
    float soft_cap;     // used if HAS_SOFT_CAP
} p;

#include "coopmat/blocks.glsl"
#include "coopmat/linear.glsl"

void main() {
    make_part(p.blocks);
}

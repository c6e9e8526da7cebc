// y (pairs, N) = scale * (xh · weight^T) with quantised weights of the expert that each pair of a token and an expert names, on
// 16×16×16 matrix units: half × half, summed in single. See coopmat/experts.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#include BLOCKS
#include "include/activation.glsl"
#include "include/expert_rows.glsl"
#define BLOCK 32
#include "coopmat/tiles.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Halves { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Floats { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };

layout(push_constant, scalar) uniform P {
    Halves xh;         // (pairs / shared_by, blocks, 32)
    Floats scale;      // (pairs / shared_by)
    Quants quants;     // (rows, blocks)
    High high;         // (rows, blocks)
    Scales scales;     // (rows, blocks)
    Output y;          // (pairs, stride)
    Tiles tiles;
    Order order;       // (pairs)
    Floats bias;       // (rows), read if HAS_BIAS
    uint shared_by;    // pairs that read one row of xh
    uint n;            // outputs of a pair
    uint blocks;       // k / 32
    uint stride;
    uint expert_rows;  // from an expert's first row to that of the next
    uint up_rows;      // from a gate to what it is for
} p;

#include "coopmat/blocks.glsl"
#include "coopmat/experts.glsl"

void main() {
    make_pairs(p.blocks);
}

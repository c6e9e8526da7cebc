#version 460
// Norms one token's latent, rotates what has a position of its key, and writes both side by side into the paged cache. One workgroup
// owns a token.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include KV
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint VECTORS = 1; // of a lane: WORKGROUP times as many hold a latent
layout(constant_id = 2) const uint LATENT = 128; // elements; a multiple of 8, for a cache of bytes of 32
layout(constant_id = 3) const uint ROTARY_DIM = 32; // those of the key, likewise
layout(constant_id = 4) const uint BLOCK_SIZE = 16;
layout(constant_id = 5) const bool IS_INTERLEAVED = true; // rotary pairs are neighbours, else they lie in halves
layout(constant_id = 6) const float AMPLITUDE = 1;
layout(constant_id = 7) const uint ROTARY_PAIRS = 0;

layout(push_constant, scalar) uniform P {
    Vec4s kv; // (tokens, row_columns), of which the first LATENT + ROTARY_DIM elements count
    Vec4s weight; // (LATENT)
    uint64_t cache; // (blocks, 1, BLOCK_SIZE, LATENT + ROTARY_DIM)
    Uvec2s freqs; // (ROTARY_DIM / 2), as in rope_cache
    Uints positions; // (tokens)
    Uints slot_mapping; // (tokens): block * BLOCK_SIZE + offset, or NO_SLOT
    uint row_columns; // in vec4s
    float eps;
} p;

const uint NO_SLOT = 0xffffffff;
const float Q_GROWTH = 0; // of queries alone
const uint Q_PERIOD = 1;
#include "include/latent_rotation.glsl"

void main() {
    uint token = gl_WorkGroupID.x, slot = (p.slot_mapping + token).v;
    if (slot == NO_SLOT)
        return;
    uint lane = kv_lane();
    const uint columns = LATENT / 4;
    Vec4s source = p.kv + uint64_t(token) * p.row_columns;
    KvRow target = kv_row(p.cache, slot, 0, 1, LATENT + ROTARY_DIM, BLOCK_SIZE);

    vec4 values[VECTORS];
    float squares = 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        values[v] = i < columns ? (source + i).v : vec4(0);
        squares += dot(values[v], values[v]);
    }
    float scale = inversesqrt(workgroup_sum(squares) / float(LATENT) + p.eps);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        if (i < columns)
            kv_store4(target, 4 * i, scale * values[v] * (p.weight + i).v);
    }
    uint position = (p.positions + token).v;
    for (uint i = lane; i < ROTARY_DIM / 4; i += WORKGROUP)
        kv_store4(target, LATENT + 4 * i, rotated_quad(source + columns, p.freqs, position, i));
}

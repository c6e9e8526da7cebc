#version 460
// The pairs of all tokens with all heads, head by head and cut into tiles, as expert_tiles sorts those of experts: a matrix of each
// head is one that every token takes. An invocation owns a place of the order, and a tile.
#extension GL_GOOGLE_include_directive : require
#include "include/expert_rows.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(push_constant, scalar) uniform P {
    OutOrder order; // (heads * tokens): pairs, token * heads + head
    OutTiles tiles; // (num_tiles), those that are not needed without pairs
    uint tokens;
    uint heads;
    uint tile; // pairs of a tile at most
    uint num_tiles; // heads * tokens at most
} p;

void main() {
    uint i = gl_WorkGroupID.x * WORKGROUP + gl_LocalInvocationID.x;
    if (i < p.heads * p.tokens)
        p.order.v[i] = i % p.tokens * p.heads + i / p.tokens;
    if (i < p.num_tiles) {
        uint of_head = (p.tokens + p.tile - 1) / p.tile, head = i / of_head, first = i % of_head * p.tile;
        p.tiles.v[i] = head < p.heads ? Tile(head, head * p.tokens + first, min(p.tile, p.tokens - first)) : Tile(0, 0, 0);
    }
}

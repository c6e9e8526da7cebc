#version 460
// Sorts pairs of a token and one of its experts by expert: `order` has their numbers, those of an expert one after the other
// and by rising number, and `tiles` cut these into as many as kernels multiply at once. One workgroup does all of it; a lane
// places the pairs of one expert at a time. Tiles that are not needed have no pairs. An expert that there is none of is the last.
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"

layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint EXPERTS = 8;
layout(constant_id = 2) const uint TILE = 8; // pairs of a tile
layout(local_size_x = 256, local_size_x_id = 0) in;

struct Tile {
    uint expert;
    uint first; // of `order`
    uint count;
};

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Order { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Tiles { Tile v[]; };

layout(push_constant, scalar) uniform P {
    Uints chosen; // (pairs)
    Order order;  // (pairs)
    Tiles tiles;  // (num_tiles)
    uint pairs;
    uint num_tiles; // pairs / TILE + EXPERTS, or the pairs, if these are fewer
} p;

const uint CHUNK = 1024;

shared uint counts[EXPERTS];
shared uint first_pairs[EXPERTS];
shared uint first_tiles[EXPERTS];
shared uint experts[CHUNK]; // of the pairs that are placed now
shared uint num_used;

void count_pairs() {
    for (uint e = gl_LocalInvocationID.x; e < EXPERTS; e += WORKGROUP) {
        counts[e] = 0;
    }
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < p.pairs; i += WORKGROUP) {
        atomicAdd(counts[min((p.chosen + i).v, EXPERTS - 1)], 1);
    }
    barrier();
    if (gl_LocalInvocationID.x == 0) {
        uint pair = 0;
        uint tile = 0;
        for (uint e = 0; e < EXPERTS; e++) {
            first_pairs[e] = pair;
            first_tiles[e] = tile;
            pair += counts[e];
            tile += (counts[e] + TILE - 1) / TILE;
        }
        num_used = tile;
    }
    barrier();
}

void write_tiles() {
    for (uint e = gl_LocalInvocationID.x; e < EXPERTS; e += WORKGROUP) {
        for (uint done = 0; done < counts[e]; done += TILE) {
            p.tiles.v[first_tiles[e] + done / TILE] = Tile(e, first_pairs[e] + done, min(TILE, counts[e] - done));
        }
    }
    for (uint i = num_used + gl_LocalInvocationID.x; i < p.num_tiles; i += WORKGROUP) {
        p.tiles.v[i] = Tile(0, 0, 0);
    }
    barrier();
}

void place_pairs() {
    for (uint begin = 0; begin < p.pairs; begin += CHUNK) {
        const uint size = min(CHUNK, p.pairs - begin);
        for (uint i = gl_LocalInvocationID.x; i < size; i += WORKGROUP) {
            experts[i] = min((p.chosen + (begin + i)).v, EXPERTS - 1);
        }
        barrier();
        for (uint e = gl_LocalInvocationID.x; e < EXPERTS; e += WORKGROUP) {
            uint place = first_pairs[e];
            for (uint i = 0; i < size; i++) {
                if (experts[i] == e) {
                    p.order.v[place++] = begin + i;
                }
            }
            first_pairs[e] = place;
        }
        barrier();
    }
}

void main() {
    count_pairs();
    write_tiles();
    place_pairs();
}

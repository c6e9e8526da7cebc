#version 460
// Sorts pairs of a token and one of its experts by expert: `order` has their numbers, those of an expert one after the other
// and by rising number, and `tiles` cut these into as many as kernels multiply at once. A subgroup places the pairs of one expert
// at a time; each workgroup counts them all for itself. Tiles that are not needed have no pairs. An expert that there is none of
// is the last.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "include/expert_rows.glsl"
#include "include/pointers.glsl"

layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint EXPERTS = 8;
layout(constant_id = 2) const uint TILE = 8; // pairs of a tile
layout(local_size_x = 256, local_size_x_id = 0) in;

layout(push_constant, scalar) uniform P {
    Uints chosen; // (pairs)
    OutOrder order; // (pairs)
    OutTiles tiles; // (num_tiles)
    uint pairs;
    uint num_tiles; // pairs / TILE + EXPERTS, or the pairs, if these are fewer
} p;

shared uint counts[EXPERTS];
shared uint first_pairs[EXPERTS];
shared uint first_tiles[EXPERTS];
shared uint num_used;

uint expert_of(uint pair) {
    return min((p.chosen + pair).v, EXPERTS - 1);
}

void count_pairs() {
    for (uint e = gl_LocalInvocationID.x; e < EXPERTS; e += WORKGROUP) {
        counts[e] = 0;
    }
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < p.pairs; i += WORKGROUP) {
        atomicAdd(counts[expert_of(i)], 1);
    }
    barrier();
}

// Finds where each expert's pairs and tiles begin.
void find_firsts() {
    if (gl_SubgroupID == 0) {
        uint pair = 0;
        uint tile = 0;
        for (uint first = 0; first < EXPERTS; first += gl_SubgroupSize) {
            const uint e = first + gl_SubgroupInvocationID;
            const uint pairs = e < EXPERTS ? counts[e] : 0;
            const uint tiles = (pairs + TILE - 1) / TILE;
            const uint own_pair = pair + subgroupExclusiveAdd(pairs);
            const uint own_tile = tile + subgroupExclusiveAdd(tiles);
            if (e < EXPERTS) {
                first_pairs[e] = own_pair;
                first_tiles[e] = own_tile;
            }
            pair += subgroupAdd(pairs);
            tile += subgroupAdd(tiles);
        }
        if (subgroupElect()) {
            num_used = tile;
        }
    }
    barrier();
}

void place_pairs(uint expert) {
    uint place = first_pairs[expert];
    const uint end = place + counts[expert];
    for (uint first = 0; place < end; first += gl_SubgroupSize) {
        const uint pair = first + gl_SubgroupInvocationID;
        const bool is_own = pair < p.pairs && expert_of(pair) == expert;
        const uvec4 ballot = subgroupBallot(is_own);
        if (is_own) {
            p.order.v[place + subgroupBallotExclusiveBitCount(ballot)] = pair;
        }
        place += subgroupBallotBitCount(ballot);
    }
}

void write_tiles(uint expert) {
    for (uint i = gl_SubgroupInvocationID; i * TILE < counts[expert]; i += gl_SubgroupSize) {
        const uint done = i * TILE;
        p.tiles.v[first_tiles[expert] + i] = Tile(expert, first_pairs[expert] + done, min(TILE, counts[expert] - done));
    }
}

void main() {
    count_pairs();
    find_firsts();
    const uint step = gl_NumWorkGroups.x * gl_NumSubgroups;
    for (uint e = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID; e < EXPERTS; e += step) {
        place_pairs(e);
        write_tiles(e);
    }
    for (uint i = num_used + gl_GlobalInvocationID.x; i < p.num_tiles; i += gl_NumWorkGroups.x * WORKGROUP) {
        p.tiles.v[i] = Tile(0, 0, 0);
    }
}

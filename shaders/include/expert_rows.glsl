// Rows of activations that are multiplied by weights of one expert: those of a tile, as expert_tiles has sorted them.

struct Tile {
    uint expert;
    uint first; // of the order
    uint count;
};

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Tiles { Tile v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Order { uint v[]; };

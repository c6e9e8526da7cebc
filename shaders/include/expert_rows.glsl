// Rows of activations that are multiplied by weights of one expert: those of a tile, as expert_tiles or route has sorted them.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require

struct Tile {
    uint expert;
    uint first; // of the order
    uint count;
};

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Tiles { Tile v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Order { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer OutTiles { Tile v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer OutOrder { uint v[]; };

// Where the rows of a step's tokens are among the packets and results of an NPU, and how a strip of rows lies there.
layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEAD_DIM = 128;
layout(constant_id = 2) const uint GROUP = 1;  // query heads of a kv head
layout(constant_id = 3) const uint TILE_N = 4;  // rows of a strip

struct Row {
    uint item;    // of the first kv head; those of the others follow
    uint first;   // row of the first head in the item
    uint stride;  // elements of an item's results
    uint slot;    // of the token in the cache, NO_SLOT for one of padding
};

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Rows { Row v; };

const uint NO_SLOT = 0xffffffff;

uint place_in_strips(uint row, uint dim) {
    return (row / TILE_N * HEAD_DIM + dim) * TILE_N + row % TILE_N;
}

// How a decode item's keys are cut into splits. It depends on the item alone, so that a batch does not change the result.
// Partials: (items, num_heads, max_splits, HEAD_DIM + 4) f32: unnormalised output, then maximum, sum, and two unused.

uint tiles_per_split(uint num_keys, uint tile, uint max_splits) {
    uint tiles = (num_keys + tile - 1) / tile;
    return (tiles + max_splits - 1) / max_splits;
}

uint num_splits(uint num_keys, uint tile, uint max_splits) {
    uint split = tiles_per_split(num_keys, tile, max_splits) * tile;
    return (num_keys + split - 1) / split;
}

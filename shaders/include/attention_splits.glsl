// How a decode item's keys are cut into splits. It depends on the item, and on whether the step is one of
// few tokens or of many, so that the others of a batch do not change the result any more than they do in other kernels.
// Partials: (items, num_heads, max_splits, HEAD_DIM + 4) f32: unnormalised output, then maximum, sum, and two unused.

const uint GRAIN = 32; // splits longer than `tile` have a multiple of so many keys

uint keys_per_split(uint num_keys, uint tile, uint max_splits) {
    uint share = (num_keys + max_splits - 1) / max_splits;
    return max(tile, (share + GRAIN - 1) / GRAIN * GRAIN);
}

uint num_splits(uint num_keys, uint tile, uint max_splits) {
    uint split = keys_per_split(num_keys, tile, max_splits);
    return (num_keys + split - 1) / split;
}

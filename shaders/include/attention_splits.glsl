// How a decode item's keys are cut into splits. It depends on the item, and on which of few ranges the step's number of
// tokens is in, so that the others of a batch do not change the result any more than they do in other kernels.
// Partials: (items, num_heads, max_splits, VALUE_DIM + 4) f32: unnormalised output, then maximum, sum, and two unused.

const uint GRAIN = 32; // splits longer than `tile` have a multiple of so many keys

// From 2 << FIRST_GROWTH keys on the shortest splits become longer, `growth` quarters of a doubling for each of the keys.
const uint FIRST_GROWTH = 8;

uint keys_per_split(uint num_keys, uint tile, uint growth, uint max_splits) {
    uint share = (num_keys + max_splits - 1) / max_splits;
    uint shortest = growth == 0 ? tile : tile << growth * (max(uint(findMSB(num_keys)), FIRST_GROWTH) - FIRST_GROWTH) / 4;
    return max(shortest, (share + GRAIN - 1) / GRAIN * GRAIN);
}

uint num_splits(uint num_keys, uint tile, uint growth, uint max_splits) {
    uint split = keys_per_split(num_keys, tile, growth, max_splits);
    return (num_keys + split - 1) / split;
}

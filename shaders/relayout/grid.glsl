// An element of an entry of GRID, a codebook: four entries of 16 bits a word, GRID_BITS an element.
uint grid_element(uint entry, uint element) {
    return uint(GRID[entry / 4] >> (entry % 4 * 16 + element * GRID_BITS)) & ((1u << GRID_BITS) - 1u);
}

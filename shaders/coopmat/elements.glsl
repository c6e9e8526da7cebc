// Dense weights for tiles.glsl, of which a block has 8 elements. Needs the file of a format, and p.xh, p.weight and p.k.

const uint WEIGHT_LOADS = (TILE_N * BLOCKS_K + WORKGROUP - 1) / WORKGROUP;
const uint ROWS_STEP = WORKGROUP / BLOCKS_K;  // rows that the workgroup loads at a time

uint own_block = gl_LocalInvocationID.x % BLOCKS_K;
uint own_row = gl_LocalInvocationID.x / BLOCKS_K;

uint input_rows[INPUT_LOADS];  // where the lane's rows begin, in blocks
uint weight_rows[WEIGHT_LOADS];
uvec4 input_loads[INPUT_LOADS];
Raw8 weight_loads[WEIGHT_LOADS];

void find_rows(uint blocks) {
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        input_rows[i] = input_row(own_row + i * ROWS_STEP) * blocks;
    }
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        weight_rows[i] = weight_row(own_row + i * ROWS_STEP) * blocks;
    }
}

void fetch(uint first_block) {
    const uint block = min(first_block + own_block, p.k / 8 - 1);
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        weight_loads[i] = fetch8(p.weight, weight_rows[i] + block);
    }
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        input_loads[i] = p.xh.v[input_rows[i] + block];
    }
}

void stage(uint buffer_index, uint first_block, uint end) {
    const bool inside = first_block + own_block < end;
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        const uint t = own_row + i * ROWS_STEP;
        if (t < TILE_T) {
            inputs[buffer_index * INPUT_SIZE + t * STRIDE + own_block] = inside ? input_loads[i] : uvec4(0);
        }
    }
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        const uint r = own_row + i * ROWS_STEP;
        if (r < TILE_N) {
            weights[buffer_index * WEIGHT_SIZE + r * STRIDE + own_block] = inside ? half8(weight_loads[i]) : uvec4(0);
        }
    }
}

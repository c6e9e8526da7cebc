// Tiles of sums on 16×16×16 matrix units: half × half, summed in single. A workgroup has TILE_T rows of activations and TILE_N
// rows of weights in shared memory, TILE_K columns of both at a time; its SUBGROUPS_T × SUBGROUPS_N subgroups own equal parts of
// the tile. The next tile of K is on its way into registers while the present one is multiplied.
//
// How weights are read, in units of BLOCK elements, is in blocks.glsl and elements.glsl. Which rows these are, and what becomes of
// sums, is what a kernel says: see `input_row`, `weight_row` and `leave`.

layout(constant_id = 0) const uint WORKGROUP = 128;  // subgroup size * SUBGROUPS_T * SUBGROUPS_N
layout(constant_id = 1) const uint TILE_T = 64;
layout(constant_id = 2) const uint TILE_N = 64;
layout(constant_id = 3) const uint TILE_K = 32;  // a multiple of 32
layout(constant_id = 4) const uint SUBGROUPS_T = 2;
layout(constant_id = 5) const uint SUBGROUPS_N = 2;
layout(constant_id = 8) const uint BUFFERS = 2;  // staged tiles: with 1, staging and multiplying take turns
layout(local_size_x = 128, local_size_x_id = 0) in;

const uint EIGHTS_K = TILE_K / 8;      // of a tile's row
const uint BLOCKS_K = TILE_K / BLOCK;  // of a tile's row
// Of a tile's row, in units of 8 halves. The unit of padding spreads the banks; the alignment of whole units is what lets
// a driver load matrices by the instructions made for it.
const uint STRIDE = EIGHTS_K + 1;
const uint INPUT_SIZE = TILE_T * STRIDE;
const uint WEIGHT_SIZE = TILE_N * STRIDE;
const uint FRAGMENTS_T = TILE_T / SUBGROUPS_T / 16;
const uint FRAGMENTS_N = TILE_N / SUBGROUPS_N / 16;
const uint INPUT_LOADS = (TILE_T * EIGHTS_K + WORKGROUP - 1) / WORKGROUP;
const uint LANES = WORKGROUP / (SUBGROUPS_T * SUBGROUPS_N);

// Words of 16 bytes throughout: floats may begin at any word, and a driver that stores matrices by wide instructions puts
// them at a multiple of its width then, beside their place.
shared uvec4 inputs[BUFFERS * INPUT_SIZE];    // (BUFFERS, TILE_T, STRIDE)
shared uvec4 weights[BUFFERS * WEIGHT_SIZE];  // (BUFFERS, TILE_N, STRIDE), at the end 64 a subgroup for its sums

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[FRAGMENTS_T * FRAGMENTS_N];

uint input_row(uint t);   // the row of all activations that is one of the tile's; of those past its end any
uint weight_row(uint r);  // the same of weights
void find_rows(uint blocks);
void fetch(uint first_block);  // what `stage` will need
// Past the end of K both factors are zero: a stray infinity in the other must not become a NaN.
void stage(uint buffer_index, uint first_block, uint end);
// Takes four sums of one row of activations, from a row of weights on, which `weights` has at `at`.
void leave(uint t, uint first_r, uint at);

void multiply(uint buffer_index, uint subgroup_t, uint subgroup_n) {
    [[unroll]] for (uint k = 0; k < TILE_K / 16; k++) {
        coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[FRAGMENTS_T];
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
            const uint t = (subgroup_t * FRAGMENTS_T + i) * 16;
            coopMatLoad(a[i], inputs, buffer_index * INPUT_SIZE + t * STRIDE + k * 2, STRIDE,
                        gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
            coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
            const uint r = (subgroup_n * FRAGMENTS_N + j) * 16;
            coopMatLoad(b, weights, buffer_index * WEIGHT_SIZE + r * STRIDE + k * 2, STRIDE,
                        gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
                sums[i * FRAGMENTS_N + j] = coopMatMulAdd(a[i], b, sums[i * FRAGMENTS_N + j]);
            }
        }
    }
}

// Leaves 16×16 sums that begin at these rows of the tile.
void store(uint index, uint first_t, uint first_r) {
    const uint room = gl_SubgroupID * 64;
    coopMatStore(sums[index], weights, room, 4, gl_CooperativeMatrixLayoutRowMajor);
    subgroupBarrier();
    [[unroll]] for (uint first = 0; first < 64; first += LANES) {
        const uint i = first + gl_SubgroupInvocationID;
        leave(first_t + i / 4, first_r + i % 4 * 4, room + i);
    }
    subgroupBarrier();
}

// Makes the tile's sums over blocks of K from one to before another, of `blocks` that rows have, and leaves them.
void make_tile(uint begin, uint end, uint blocks) {
    const uint subgroup_t = gl_SubgroupID / SUBGROUPS_N;
    const uint subgroup_n = gl_SubgroupID % SUBGROUPS_N;
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T * FRAGMENTS_N; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    }
    find_rows(blocks);
    fetch(begin);
    uint buffer_index = 0;
    for (uint block = begin; block < end; block += BLOCKS_K) {
        stage(buffer_index, block, end);
        barrier();
        const uint next = block + BLOCKS_K;
        if (next < end) {
            fetch(next);
        }
        multiply(buffer_index, subgroup_t, subgroup_n);
        if (BUFFERS > 1) {
            buffer_index = 1 - buffer_index;
        } else {
            barrier();
        }
    }
    barrier();
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
            store(i * FRAGMENTS_N + j, (subgroup_t * FRAGMENTS_T + i) * 16, (subgroup_n * FRAGMENTS_N + j) * 16);
        }
    }
}

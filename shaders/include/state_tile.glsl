// Columns of a head's state S in shared memory, for kernels that go through a long run chunk by chunk. Behind WORKGROUP, KEY_VECTORS,
// VALUE_VECTORS and TILE, and the arguments p.state, p.state_bytes and p.state_offset.

const uint TILES = (VALUE_VECTORS + TILE - 1) / TILE; // of a head

shared vec4 s[4 * KEY_VECTORS * TILE]; // (4 * KEY_VECTORS, TILE)

uint lane = gl_LocalInvocationID.x;
uint column = lane % TILE, group = lane / TILE;
uint head = gl_WorkGroupID.x / TILES;
uint tile = gl_WorkGroupID.x % TILES * TILE;

Vec4s state_of(uint state_index, uint value) {
    Vec4s state = Vec4s(p.state + uint64_t(state_index) * p.state_bytes + p.state_offset);
    return state + (uint64_t(head) * (4 * VALUE_VECTORS) + value) * KEY_VECTORS;
}

// A column of S lies in one piece in memory, a row of it in shared memory.
void load_state(uint state_index, bool is_fresh) {
    for (uint i = lane; i < 4 * TILE * KEY_VECTORS; i += WORKGROUP) {
        uint k = i % KEY_VECTORS, v = i / KEY_VECTORS;
        vec4 values = vec4(0);
        if (!is_fresh && 4 * tile + v < 4 * VALUE_VECTORS)
            values = (state_of(state_index, 4 * tile + v) + k).v;
        [[unroll]] for (uint c = 0; c < 4; ++c)
            s[(4 * k + c) * TILE + v / 4][v % 4] = values[c];
    }
}

void store_state(uint state_index) {
    for (uint i = lane; i < 4 * TILE * KEY_VECTORS; i += WORKGROUP) {
        uint k = i % KEY_VECTORS, v = i / KEY_VECTORS;
        vec4 values;
        [[unroll]] for (uint c = 0; c < 4; ++c)
            values[c] = s[(4 * k + c) * TILE + v / 4][v % 4];
        if (4 * tile + v < 4 * VALUE_VECTORS)
            (state_of(state_index, 4 * tile + v) + k).v = values;
    }
}

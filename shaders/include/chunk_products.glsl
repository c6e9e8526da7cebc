// What tokens of a chunk have for each other and for the state. Behind include/state_tile.glsl, ROWS, GROUPS, KEYS, AHEAD and STRIDE, and
// what these kernels have in shared memory: `tokens` (CHUNK, TILE), `factors` (CHUNK, STRIDE) and `decays` (CHUNK): the product of all
// decays up to a token, and what it leaves to the state. `keys_of` returns a row's keys, of which `first_keys` are under way.

// The sum over tokens up to the lane's last, in whole eights, of a factor and what the token has in shared memory.
#define ADD_TOKENS(sums)                                                                    \
    [[dont_unroll]] for (uint v = 0; v <= (ROWS * group + ROWS - 1) / 4; v += 2) {          \
        vec4 f[ROWS * 2];                                                                   \
        [[unroll]] for (uint r = 0; r < ROWS; ++r)                                          \
            [[unroll]] for (uint i = 0; i < 2; ++i)                                         \
                f[r * 2 + i] = factors[(ROWS * group + r) * STRIDE + v + i];                \
        [[unroll]] for (uint c = 0; c < 8; ++c) {                                           \
            vec4 row = tokens[(4 * v + c) * TILE + column];                                 \
            [[unroll]] for (uint r = 0; r < ROWS; ++r)                                      \
                sums[r] = fma(vec4(f[r * 2 + c / 4][c % 4]), row, sums[r]);                 \
        }                                                                                   \
    }

// Behind the last token U is nothing, and its keys are read again.
#define FETCH_KEYS(into, row, first, num_tokens)                                            \
    [[unroll]] for (uint i = 0; i < AHEAD; ++i) {                                           \
        Vec4s k = keys_of(row + min(first + i, num_tokens - 1));                            \
        [[unroll]] for (uint m = 0; m < KEYS; ++m)                                          \
            into[i * KEYS + m] = (k + min(group + m * GROUPS, KEY_VECTORS - 1)).v;          \
    }

#define ADD_KEYS(k4, first)                                                                 \
    [[unroll]] for (uint i = 0; i < AHEAD; ++i) {                                           \
        uint token = (first) + i;                                                           \
        vec4 u = decays[token].y * tokens[token * TILE + column];                           \
        [[unroll]] for (uint m = 0; m < KEYS; ++m)                                          \
            [[unroll]] for (uint c = 0; c < 4; ++c)                                         \
                added[m * 4 + c] = fma(vec4(k4[i * KEYS + m][c]), u, added[m * 4 + c]);     \
    }

// Adds what tokens leave to the state.
void add_keys(uint row, uint num_tokens) {
    vec4 added[KEYS * 4];
    float decay = decays[num_tokens - 1].x;
    [[unroll]] for (uint m = 0; m < KEYS; ++m)
        [[unroll]] for (uint c = 0; c < 4; ++c)
            added[m * 4 + c] = decay * s[(4 * min(group + m * GROUPS, KEY_VECTORS - 1) + c) * TILE + column];
    [[dont_unroll]] for (uint first = 0; first < num_tokens; first += 2 * AHEAD) {
        vec4 more_keys[AHEAD * KEYS];
        FETCH_KEYS(more_keys, row, first + AHEAD, num_tokens)
        ADD_KEYS(first_keys, first)
        FETCH_KEYS(first_keys, row, first + 2 * AHEAD, num_tokens)
        ADD_KEYS(more_keys, first + AHEAD)
    }
    [[unroll]] for (uint m = 0; m < KEYS; ++m)
        if (group + m * GROUPS < KEY_VECTORS)
            [[unroll]] for (uint c = 0; c < 4; ++c)
                s[(4 * (group + m * GROUPS) + c) * TILE + column] = added[m * 4 + c];
}

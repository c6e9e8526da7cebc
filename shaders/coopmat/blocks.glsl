// Quantised weights for tiles.glsl, in blocks of 32: they become halves on their way into shared memory. Needs the file of a format, and p.xh,
// p.quants, p.high, p.scales and p.blocks.

const uint WEIGHT_LOADS = (TILE_N * BLOCKS_K + WORKGROUP - 1) / WORKGROUP;

uint own_eight = gl_LocalInvocationID.x % EIGHTS_K;
uint own_block = gl_LocalInvocationID.x % BLOCKS_K;

uint input_rows[INPUT_LOADS];    // where the lane's rows begin, in units of 8
uint weight_rows[WEIGHT_LOADS];  // in blocks
uvec4 input_loads[INPUT_LOADS];
Codes code_loads[WEIGHT_LOADS];
Scale scale_loads[WEIGHT_LOADS];

void find_rows(uint blocks) {
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        input_rows[i] = input_row((gl_LocalInvocationID.x + i * WORKGROUP) / EIGHTS_K) * blocks * 4;
    }
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        weight_rows[i] = weight_row((gl_LocalInvocationID.x + i * WORKGROUP) / BLOCKS_K) * blocks;
    }
}

void fetch(uint first_block) {
    const uint block = min(first_block + own_block, p.blocks - 1);
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        code_loads[i] = fetch_codes(p.quants, p.high, weight_rows[i] + block);
        scale_loads[i] = fetch_scale(p.scales, weight_rows[i] + block);
    }
    const uint eight = min(first_block * 4 + own_eight, p.blocks * 4 - 1);
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        input_loads[i] = p.xh.v[input_rows[i] + eight];
    }
}

// Makes weights of one group's codes, and of eight at a time 16 bytes.
void stage_group(uint to, Codes codes, uint group, float scale, float offset) {
    const f16vec2 scales = f16vec2(float16_t(scale));
    const f16vec2 offsets = f16vec2(float16_t(offset));
    [[unroll]] for (uint i = 0; i < 2; i++) {
        uvec4 words;
        [[unroll]] for (uint j = 0; j < 2; j++) {
            f16vec2 low, high;
            quad_halves(codes, group * 4 + i * 2 + j, low, high);
            low *= scales;
            high *= scales;
            if (HAS_OFFSET) {
                low += offsets;
                high += offsets;
            }
            words[2 * j] = packFloat2x16(low);
            words[2 * j + 1] = packFloat2x16(high);
        }
        weights[to + i] = words;
    }
}

void stage(uint buffer_index, uint first_block, uint end) {
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        const uint t = (gl_LocalInvocationID.x + i * WORKGROUP) / EIGHTS_K;
        if (t < TILE_T) {
            const bool inside = first_block * 4 + own_eight < end * 4;
            inputs[buffer_index * INPUT_SIZE + t * STRIDE + own_eight] = inside ? input_loads[i] : uvec4(0);
        }
    }
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        const uint r = (gl_LocalInvocationID.x + i * WORKGROUP) / BLOCKS_K;
        if (r < TILE_N) {
            const uint block = first_block + own_block;
            vec2 scale;
            Offset offset;
            unpack_scale(scale_loads[i], weight_rows[i] + block, scale, offset);
            const float mask = block < end ? 1.0 : 0.0;
            const uint to = buffer_index * WEIGHT_SIZE + r * STRIDE + own_block * 4;
            stage_group(to, code_loads[i], 0, scale.x * mask, of_group(offset, 0) * mask);
            stage_group(to + 2, code_loads[i], 1, scale.y * mask, of_group(offset, 1) * mask);
        }
    }
}

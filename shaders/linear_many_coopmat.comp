// y (T, N) = scale (T) * (xh (T, K) · weight (N, K)^T) + bias (N), on 16×16×16 matrix units: half × half, summed in single.
// A workgroup owns TILE_T tokens (along x) and TILE_N weight rows (along y), and its subgroups, SUBGROUPS_T × SUBGROUPS_N
// of them, equal parts of these. The next tile is on its way into registers while the present one is multiplied.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#include FORMAT
#include "include/soft_cap.glsl"

layout(constant_id = 0) const uint WORKGROUP = 128;  // subgroup size * SUBGROUPS_T * SUBGROUPS_N
layout(constant_id = 1) const uint TILE_T = 64;
layout(constant_id = 2) const uint TILE_N = 64;
layout(constant_id = 3) const uint TILE_K = 32;
layout(constant_id = 4) const uint SUBGROUPS_T = 2;
layout(constant_id = 5) const uint SUBGROUPS_N = 2;
layout(constant_id = 6) const bool HAS_BIAS = false;
layout(constant_id = 7) const bool HAS_SOFT_CAP = false;
layout(local_size_x = 128, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Halves { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Floats { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Output { float v[]; };

layout(push_constant, scalar) uniform P {
    Halves xh;       // (tokens, k)
    Floats scale;    // (tokens)
    Weights weight;  // (n, k)
    Floats bias;     // (n), read if HAS_BIAS
    Output y;        // (tokens, n)
    uint tokens;
    uint n;
    uint k;          // a multiple of 8
    float soft_cap;  // used if HAS_SOFT_CAP
} p;

const uint BLOCKS_K = TILE_K / 8;
const uint STRIDE = TILE_K / 4 + 2;  // of a tile's row, in units of 4 halves; the 16 bytes of padding spread the banks
const uint INPUT_SIZE = TILE_T * STRIDE;
const uint WEIGHT_SIZE = TILE_N * STRIDE;
const uint FRAGMENTS_T = TILE_T / SUBGROUPS_T / 16;
const uint FRAGMENTS_N = TILE_N / SUBGROUPS_N / 16;
const uint INPUT_LOADS = (TILE_T * BLOCKS_K + WORKGROUP - 1) / WORKGROUP;
const uint WEIGHT_LOADS = (TILE_N * BLOCKS_K + WORKGROUP - 1) / WORKGROUP;

shared f16vec4 inputs[2 * INPUT_SIZE];                     // (2, TILE_T, STRIDE)
shared f16vec4 weights[2 * WEIGHT_SIZE];                   // (2, TILE_N, STRIDE)
shared float results[SUBGROUPS_T * SUBGROUPS_N * 16 * 16];  // (subgroups, 16, 16)

uvec4 input_loads[INPUT_LOADS];
Raw8 weight_loads[WEIGHT_LOADS];

void fetch(uint first_token, uint first_row, uint first_block) {
    const uint blocks = p.k / 8;
    const uint block = min(first_block + gl_LocalInvocationID.x % BLOCKS_K, blocks - 1);
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        const uint t = (gl_LocalInvocationID.x + i * WORKGROUP) / BLOCKS_K;
        input_loads[i] = p.xh.v[min(first_token + t, p.tokens - 1) * blocks + block];
    }
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        const uint r = (gl_LocalInvocationID.x + i * WORKGROUP) / BLOCKS_K;
        weight_loads[i] = fetch8(p.weight, min(first_row + r, p.n - 1) * blocks + block);
    }
}

// Past the end of K both factors are zero: a stray infinity in the other must not become a NaN.
void stage(uint buffer_index, bool inside) {
    const uint column = gl_LocalInvocationID.x % BLOCKS_K * 2;
    [[unroll]] for (uint i = 0; i < INPUT_LOADS; i++) {
        const uint t = (gl_LocalInvocationID.x + i * WORKGROUP) / BLOCKS_K;
        const uvec4 halves = inside ? input_loads[i] : uvec4(0);
        if (t < TILE_T) {
            const uint to = buffer_index * INPUT_SIZE + t * STRIDE + column;
            inputs[to] = f16vec4(unpackFloat2x16(halves.x), unpackFloat2x16(halves.y));
            inputs[to + 1] = f16vec4(unpackFloat2x16(halves.z), unpackFloat2x16(halves.w));
        }
    }
    [[unroll]] for (uint i = 0; i < WEIGHT_LOADS; i++) {
        const uint r = (gl_LocalInvocationID.x + i * WORKGROUP) / BLOCKS_K;
        const uvec4 halves = inside ? half8(weight_loads[i]) : uvec4(0);
        if (r < TILE_N) {
            const uint to = buffer_index * WEIGHT_SIZE + r * STRIDE + column;
            weights[to] = f16vec4(unpackFloat2x16(halves.x), unpackFloat2x16(halves.y));
            weights[to + 1] = f16vec4(unpackFloat2x16(halves.z), unpackFloat2x16(halves.w));
        }
    }
}

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[FRAGMENTS_T * FRAGMENTS_N];

void multiply(uint buffer_index, uint subgroup_t, uint subgroup_n) {
    [[unroll]] for (uint k = 0; k < TILE_K / 16; k++) {
        coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[FRAGMENTS_T];
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
            const uint t = (subgroup_t * FRAGMENTS_T + i) * 16;
            coopMatLoad(a[i], inputs, buffer_index * INPUT_SIZE + t * STRIDE + k * 4, STRIDE,
                        gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
            coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
            const uint r = (subgroup_n * FRAGMENTS_N + j) * 16;
            coopMatLoad(b, weights, buffer_index * WEIGHT_SIZE + r * STRIDE + k * 4, STRIDE,
                        gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
                sums[i * FRAGMENTS_N + j] = coopMatMulAdd(a[i], b, sums[i * FRAGMENTS_N + j]);
            }
        }
    }
}

// Writes the 16×16 sums that the subgroup has put into its part of `results`.
void store(uint first_token, uint first_row) {
    for (uint i = gl_SubgroupInvocationID; i < 16 * 16; i += gl_SubgroupSize) {
        const uint token = first_token + i / 16;
        const uint row = first_row + i % 16;
        if (token < p.tokens && row < p.n) {
            float value = results[gl_SubgroupID * 16 * 16 + i] * p.scale.v[token];
            if (HAS_BIAS) {
                value += p.bias.v[row];
            }
            if (HAS_SOFT_CAP) {
                value = soft_cap(value, p.soft_cap);
            }
            p.y.v[token * p.n + row] = value;
        }
    }
}

void main() {
    const uint first_token = gl_WorkGroupID.x * TILE_T;
    const uint first_row = gl_WorkGroupID.y * TILE_N;
    const uint subgroup_t = gl_SubgroupID / SUBGROUPS_N;
    const uint subgroup_n = gl_SubgroupID % SUBGROUPS_N;
    const uint blocks = p.k / 8;
    const uint own_block = gl_LocalInvocationID.x % BLOCKS_K;
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T * FRAGMENTS_N; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    }
    fetch(first_token, first_row, 0);
    stage(0, own_block < blocks);
    barrier();
    uint buffer_index = 0;
    for (uint block = 0; block < blocks; block += BLOCKS_K) {
        const uint next = block + BLOCKS_K;
        if (next < blocks) {
            fetch(first_token, first_row, next);
        }
        multiply(buffer_index, subgroup_t, subgroup_n);
        buffer_index = 1 - buffer_index;
        if (next < blocks) {
            stage(buffer_index, next + own_block < blocks);
        }
        barrier();
    }
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
            coopMatStore(sums[i * FRAGMENTS_N + j], results, gl_SubgroupID * 16 * 16, 16,
                         gl_CooperativeMatrixLayoutRowMajor);
            subgroupBarrier();
            store(first_token + (subgroup_t * FRAGMENTS_T + i) * 16, first_row + (subgroup_n * FRAGMENTS_N + j) * 16);
            subgroupBarrier();
        }
    }
}

// y (m, n) = a (m, k) · b (n, k)^T by VK_NV_cooperative_matrix2, with nothing else to do: what a product of halves can come
// to on a device that has it. A workgroup owns TILE_M rows (along x) and TILE_N columns (along y) of y, one matrix of all
// its lanes. FROM_MEMORY it reads TILE_K columns of both factors at a time, `steps` times UNROLL; else it reads the first
// ones alone, and adds their product as often.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_NV_cooperative_matrix2 : require

layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint TILE_M = 128;
layout(constant_id = 2) const uint TILE_N = 128;
layout(constant_id = 3) const uint TILE_K = 32;
layout(constant_id = 4) const uint UNROLL = 1;
layout(constant_id = 5) const bool FROM_MEMORY = true;
layout(local_size_x = 256, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Halves { float16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Sums { SUM v[]; };

layout(push_constant, scalar) uniform P {
    Halves a;    // (m, k)
    Halves b;    // (n, k)
    Sums y;      // (m, n)
    uint m;      // a multiple of TILE_M
    uint n;      // a multiple of TILE_N
    uint k;      // a multiple of TILE_K * UNROLL and of 64
    uint steps;  // k / (TILE_K * UNROLL) FROM_MEMORY
} p;

void main() {
    const uint k = p.k & ~63u;  // so that the driver knows that rows begin at whole blocks
    const uint row = gl_WorkGroupID.x * TILE_M;
    const uint column = gl_WorkGroupID.y * TILE_N;
    const tensorViewNV<2, false, 1, 0> transposed = createTensorViewNV(2, false, 1, 0);
    tensorLayoutNV<2> a_rows = createTensorLayoutNV(2);
    tensorLayoutNV<2> b_rows = createTensorLayoutNV(2);
    tensorLayoutNV<2> y_rows = createTensorLayoutNV(2);
    a_rows = setTensorLayoutDimensionNV(a_rows, p.m, k);
    b_rows = setTensorLayoutDimensionNV(b_rows, p.n, k);
    y_rows = setTensorLayoutDimensionNV(y_rows, p.m, p.n);

    coopmat<SUM, gl_ScopeWorkgroup, TILE_M, TILE_N, gl_MatrixUseAccumulator> sums =
        coopmat<SUM, gl_ScopeWorkgroup, TILE_M, TILE_N, gl_MatrixUseAccumulator>(0.0);
    if (FROM_MEMORY) {
        uint first = 0;
        [[dont_unroll]] for (uint step = 0; step < p.steps; step++) {
            [[unroll]] for (uint i = 0; i < UNROLL; i++) {
                coopmat<float16_t, gl_ScopeWorkgroup, TILE_M, TILE_K, gl_MatrixUseA> a;
                coopmat<float16_t, gl_ScopeWorkgroup, TILE_K, TILE_N, gl_MatrixUseB> b;
                coopMatLoadTensorNV(a, p.a.v, 0, sliceTensorLayoutNV(a_rows, row, TILE_M, first, TILE_K));
                coopMatLoadTensorNV(b, p.b.v, 0, sliceTensorLayoutNV(b_rows, column, TILE_N, first, TILE_K), transposed);
                sums = coopMatMulAdd(a, b, sums);
                first += TILE_K;
            }
        }
    } else {
        coopmat<float16_t, gl_ScopeWorkgroup, TILE_M, TILE_K, gl_MatrixUseA> a;
        coopmat<float16_t, gl_ScopeWorkgroup, TILE_K, TILE_N, gl_MatrixUseB> b;
        coopMatLoadTensorNV(a, p.a.v, 0, sliceTensorLayoutNV(a_rows, row, TILE_M, 0, TILE_K));
        coopMatLoadTensorNV(b, p.b.v, 0, sliceTensorLayoutNV(b_rows, column, TILE_N, 0, TILE_K), transposed);
        [[dont_unroll]] for (uint step = 0; step < p.steps; step++) {
            [[unroll]] for (uint i = 0; i < UNROLL; i++) {
                sums = coopMatMulAdd(a, b, sums);
            }
        }
    }
    coopMatStoreTensorNV(sums, p.y.v, 0, sliceTensorLayoutNV(y_rows, row, TILE_M, column, TILE_N));
}

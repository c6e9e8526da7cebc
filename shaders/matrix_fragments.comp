// Whether a subgroup's lanes hold the elements of 16×16 matrices of halves that linear_quant_fragments counts on: lane 4 g + q
// of a first factor those of columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of row g, then of row g + 8, and of a second factor the
// same with rows and columns exchanged; of one with COLUMNS = 8 columns, the first four. One workgroup of one subgroup.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(constant_id = 1) const uint COLUMNS = 16;  // of the second factor
layout(local_size_x = 32, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Answers { uint v[]; };

layout(push_constant, scalar) uniform P {
    Answers answers;  // (32): whether the lane's elements are those
} p;

shared float16_t values[16 * 16];  // each its own index

void main() {
    const uint lane = gl_SubgroupInvocationID;
    for (uint i = lane; i < 16 * 16; i += gl_SubgroupSize) {
        values[i] = float16_t(i);
    }
    barrier();
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a;
    coopmat<float16_t, gl_ScopeSubgroup, 16, COLUMNS, gl_MatrixUseB> b;
    coopMatLoad(a, values, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, values, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
    bool right = a.length() == 8 && b.length() == COLUMNS / 2 && gl_SubgroupSize == 32;
    if (right) {
        for (uint i = 0; i < 8; i++) {
            const uint k = lane % 4 * 2 + i % 2 + i / 2 % 2 * 8;
            const uint other = lane / 4 + i / 4 * 8;
            right = right && uint(a[i]) == other * 16 + k;
            if (i < COLUMNS / 2) {
                right = right && uint(b[i]) == k * 16 + other;
            }
        }
    }
    p.answers.v[lane] = right ? 1 : 0;
}

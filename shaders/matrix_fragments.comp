// Which elements of 16×16 matrices of halves a subgroup's lanes hold: of a first factor and of a second one with COLUMNS columns
// how many a lane has, and the first eight of each by their indices in rows of 16; what there is not is not written. One workgroup of one subgroup.
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
    Answers answers;  // (32, 18): lengths of the factors, elements of the first, then of the second
} p;

const uint KEPT = 8;  // of each factor

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
    const uint first = lane * (2 + 2 * KEPT);
    p.answers.v[first] = a.length();
    p.answers.v[first + 1] = b.length();
    for (uint i = 0; i < KEPT; i++) {
        if (i < a.length()) {
            p.answers.v[first + 2 + i] = uint(a[i]);
        }
        if (i < b.length()) {
            p.answers.v[first + 2 + KEPT + i] = uint(b[i]);
        }
    }
}

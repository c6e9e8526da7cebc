// The rate of 16×16×16 matrix units, half × half, summed in single, with nothing else to do: no loads from memory, no
// conversion. A workgroup owns a tile of 128×128 sums, 64×64 a subgroup, and adds 32 columns of factors to it `rounds`
// times: the same factors from registers, or FROM_SHARED memory between barriers, as any product of tiles has to.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

layout(constant_id = 0) const uint WORKGROUP = 128;  // subgroup size * 4
layout(constant_id = 1) const bool FROM_SHARED = false;
layout(local_size_x = 128, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Halves { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly restrict buffer Floats { float v[]; };

layout(push_constant, scalar) uniform P {
    Halves source;  // (2 * SIDE * STRIDE) blocks of 8
    Floats sums;    // (workgroups, WORKGROUP)
    uint rounds;
} p;

const uint SIDE = 128;
const uint STRIDE = 5;  // blocks of 8 halves: 32 columns, and one block to spread the banks
const uint FRAGMENTS = 4;

shared uvec4 left[SIDE * STRIDE];
shared uvec4 right[SIDE * STRIDE];

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[FRAGMENTS * FRAGMENTS];
coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[FRAGMENTS];
coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b[FRAGMENTS];

void load(uint k) {
    [[unroll]] for (uint i = 0; i < FRAGMENTS; i++) {
        const uint row = (gl_SubgroupID / 2 * FRAGMENTS + i) * 16;
        const uint column = (gl_SubgroupID % 2 * FRAGMENTS + i) * 16;
        coopMatLoad(a[i], left, row * STRIDE + k * 2, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        coopMatLoad(b[i], right, column * STRIDE + k * 2, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
    }
}

void multiply() {
    [[unroll]] for (uint i = 0; i < FRAGMENTS; i++) {
        [[unroll]] for (uint j = 0; j < FRAGMENTS; j++) {
            sums[i * FRAGMENTS + j] = coopMatMulAdd(a[i], b[j], sums[i * FRAGMENTS + j]);
        }
    }
}

void main() {
    for (uint i = gl_LocalInvocationID.x; i < SIDE * STRIDE; i += WORKGROUP) {
        left[i] = p.source.v[i];
        right[i] = p.source.v[SIDE * STRIDE + i];
    }
    [[unroll]] for (uint i = 0; i < FRAGMENTS * FRAGMENTS; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    }
    barrier();
    load(0);
    for (uint round = 0; round < p.rounds; round++) {
        [[unroll]] for (uint k = 0; k < 2; k++) {
            if (FROM_SHARED) {
                load(k);
            }
            multiply();
        }
        if (FROM_SHARED) {
            barrier();
        }
    }
    float total = 0.0;
    [[unroll]] for (uint i = 0; i < FRAGMENTS * FRAGMENTS; i++) {
        for (uint element = 0; element < sums[i].length(); element++) {
            total += sums[i][element];
        }
    }
    p.sums.v[gl_WorkGroupID.x * WORKGROUP + gl_LocalInvocationID.x] = total;
}

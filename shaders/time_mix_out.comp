#version 460
// What RWKV-7's heads leave: (group_norm(y) + (r . (k * r_k)) * v) * gate, written in the form that who reads it wants. A workgroup
// owns one row, of which a lane holds VECTORS times four elements.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint VECTORS = 1;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint HEAD_VECTORS = 16;

layout(push_constant, scalar) uniform P {
    Vec4s x; // (tokens, HEADS, HEAD_VECTORS), as r, k, v and gate
    Vec4s r;
    Vec4s k;
    Vec4s v;
    Vec4s gate;
    Vec4s r_k; // (HEADS, HEAD_VECTORS)
    Vec4s weight; // (HEADS, HEAD_VECTORS)
    Vec4s bias; // (HEADS, HEAD_VECTORS)
    OutValues y; // (tokens, HEADS, HEAD_VECTORS)
    OutScales y_scale;
    OutCounters counters;
    uint num_counters;
    float eps;
} p;

const uint COLUMNS = HEADS * HEAD_VECTORS;
shared vec3 heads[HEADS]; // mean, one over the deviation, and what of v is added

vec3 look_at(uint64_t first, uint head) {
    float sum = 0, squares = 0, bonus = 0;
    for (uint i = gl_SubgroupInvocationID; i < HEAD_VECTORS; i += gl_SubgroupSize) {
        sum += dot((p.x + first + i).v, vec4(1));
        bonus += dot((p.r + first + i).v * (p.k + first + i).v, (p.r_k + head * HEAD_VECTORS + i).v);
    }
    float mean = subgroupAdd(sum) / float(4 * HEAD_VECTORS);
    for (uint i = gl_SubgroupInvocationID; i < HEAD_VECTORS; i += gl_SubgroupSize) {
        vec4 centred = (p.x + first + i).v - mean;
        squares += dot(centred, centred);
    }
    return vec3(mean, inversesqrt(subgroupAdd(squares) / float(4 * HEAD_VECTORS) + p.eps), subgroupAdd(bonus));
}

void main() {
    uint row = gl_WorkGroupID.x;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint64_t first = uint64_t(row) * COLUMNS;
    for (uint head = gl_SubgroupID; head < HEADS; head += gl_NumSubgroups) {
        vec3 found = look_at(first + head * HEAD_VECTORS, head);
        if (subgroupElect())
            heads[head] = found;
    }
    barrier();
    vec4 values[VECTORS];
    vec4 sizes = vec4(0);
    [[unroll]] for (uint n = 0; n < VECTORS; ++n) {
        uint i = min(lane + n * WORKGROUP, COLUMNS - 1);
        vec3 head = heads[i / HEAD_VECTORS];
        vec4 normed = fma(((p.x + first + i).v - head.x) * head.y, (p.weight + i).v, (p.bias + i).v);
        values[n] = fma(vec4(head.z), (p.v + first + i).v, normed) * (p.gate + first + i).v;
        sizes = max(sizes, abs(values[n]));
    }
    float largest = NEEDS_LARGEST ? workgroup_max(max(max(sizes.x, sizes.y), max(sizes.z, sizes.w))) : 0;
    [[unroll]] for (uint n = 0; n < VECTORS; ++n) {
        uint i = lane + n * WORKGROUP;
        if (i < COLUMNS)
            store_part(p.y, p.y_scale, row, COLUMNS, i, values[n], largest);
    }
    finish_row(p.y_scale, p.counters, row, p.num_counters, lane, WORKGROUP, largest);
}

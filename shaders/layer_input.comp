#version 460
// What a layer gets of its tokens themselves: act(gate) * ((rms_norm(context) * weight + identity) * scale), written in the form
// that who reads it wants. One workgroup owns one row, of which a lane holds VECTORS times four elements.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include "include/activation.glsl"
#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ACT = 0; // of include/activation.glsl
layout(constant_id = 2) const uint VECTORS = 1;
layout(constant_id = 3) const float SCALE = 1;

layout(push_constant, scalar) uniform P {
    Vec4s gate; // (tokens, 4 * columns)
    Vec4s context; // (tokens, 4 * columns)
    Vec4s identity; // (tokens, 4 * columns)
    Vec4s weight; // (4 * columns)
    OutValues y; // (tokens, 4 * columns)
    OutScales y_scale;
    OutCounters counters;
    uint columns; // in vec4s
    uint num_counters;
    float eps;
} p;

void main() {
    uint row = gl_WorkGroupID.x;
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    vec4 values[VECTORS];
    float squares = 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        values[v] = i < p.columns ? (p.context + (row * p.columns + i)).v : vec4(0);
        squares += dot(values[v], values[v]);
    }
    float norm = inversesqrt(workgroup_sum(squares) / float(4 * p.columns) + p.eps);
    vec4 sizes = vec4(0);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        if (i < p.columns) {
            vec4 own = (values[v] * norm * (p.weight + i).v + (p.identity + (row * p.columns + i)).v) * SCALE;
            values[v] = act(ACT, (p.gate + (row * p.columns + i)).v) * own;
        }
        sizes = max(sizes, abs(values[v]));
    }
    float largest = NEEDS_LARGEST ? workgroup_max(max(max(sizes.x, sizes.y), max(sizes.z, sizes.w))) : 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        if (i < p.columns)
            store_part(p.y, p.y_scale, row, p.columns, i, values[v], largest);
    }
    finish_row(p.y_scale, p.counters, row, p.num_counters, lane, WORKGROUP, largest);
}

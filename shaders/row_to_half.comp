// Brings rows into half precision, see include/half_rows.glsl. A workgroup owns one row, of which a lane holds VECTORS times four
// elements.
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint VECTORS = 1;
layout(local_size_x = 256, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Input { vec4 v[]; };

layout(push_constant, scalar) uniform P {
    Input x;               // (tokens, 4 * columns)
    OutValues y;           // (tokens, 4 * columns) f16
    OutScales y_scale;     // (tokens)
    OutCounters counters;  // (num_counters)
    uint columns;          // in vec4s, even
    uint num_counters;
} p;

void main() {
    const uint row = gl_WorkGroupID.x;
    vec4 values[VECTORS];
    vec4 sizes = vec4(0.0);
    [[unroll]] for (uint v = 0; v < VECTORS; v++) {
        const uint i = gl_LocalInvocationID.x + v * WORKGROUP;
        values[v] = i < p.columns ? p.x.v[row * p.columns + i] : vec4(0.0);
        sizes = max(sizes, abs(values[v]));
    }
    const float largest = workgroup_max(max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
    [[unroll]] for (uint v = 0; v < VECTORS; v++) {
        const uint i = gl_LocalInvocationID.x + v * WORKGROUP;
        if (i < p.columns) {
            store_part(p.y, p.y_scale, row, p.columns, i, values[v], largest);
        }
    }
    finish_row(p.y_scale, p.counters, row, p.num_counters, gl_LocalInvocationID.x, WORKGROUP, largest);
}

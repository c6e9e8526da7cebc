#version 460
// The norm of rows after a residual addition, written in the form that who reads it wants. One workgroup owns one row, of
// which a lane holds VECTORS times four elements from the first load to the last store.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"
#include FORM
#include "reduce/workgroup.glsl"

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
// 0: h = x, 1: h = hidden + x, 2: h = hidden + rms_norm(x) * post_weight, 3: h = hidden, and then hidden + x is stored
layout(constant_id = 1) const uint RESIDUAL = 0;
layout(constant_id = 2) const bool WITH_NORM = true; // y = norm(h) * weight; otherwise only hidden = h
layout(constant_id = 3) const bool WITH_ROWS = false; // y's row i is made of row rows[i], and hidden is left alone
layout(constant_id = 4) const bool PLUS_ONE = false; // weights count from 1
layout(constant_id = 5) const uint VECTORS = 1;
layout(constant_id = 6) const uint KIND = 0; // of norm(h): 0: RMSNorm, 1: LayerNorm, 2: none, y = h
layout(constant_id = 7) const float BRANCH_SCALE = 1; // of what is added to hidden
layout(constant_id = 8) const float OUT_SCALE = 1; // of y, where there is a norm
layout(constant_id = 9) const bool WITH_FACTOR = false; // what was added to is multiplied by a factor of the checkpoint
layout(constant_id = 10) const bool HAS_BIAS = false; // y = norm(h) * weight + bias, before it is multiplied by OUT_SCALE

const uint LAYER_NORM = 1, NO_NORM = 2;

layout(push_constant, scalar) uniform P {
    Vec4s x; // (tokens, 4 * x_columns), of which the first 4 * columns count
    Vec4s hidden; // (tokens, 4 * columns)
    Vec4s post_weight; // (4 * columns)
    Vec4s weight; // (4 * columns)
    Vec4s bias; // (4 * columns)
    OutValues y; // (tokens or selected rows, 4 * columns)
    OutScales y_scale;
    OutCounters counters;
    Uints rows; // (selected rows)
    Floats factor; // (1)
    uint columns; // in vec4s
    uint x_columns;
    uint num_counters;
    float eps;
} p;

uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
vec4 values[VECTORS];

float squares() {
    float sum = 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v)
        sum += dot(values[v], values[v]);
    return sum;
}

float magnitude() {
    vec4 sizes = vec4(0);
    [[unroll]] for (uint v = 0; v < VECTORS; ++v)
        sizes = max(sizes, abs(values[v]));
    return max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
}

float elements() {
    float sum = 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v)
        sum += dot(values[v], vec4(1));
    return sum;
}

float inverse_rms(float total) {
    return inversesqrt(total / float(4 * p.columns) + p.eps);
}

void scale_values(float scale, vec4 weights[VECTORS]) {
    [[unroll]] for (uint v = 0; v < VECTORS; ++v)
        values[v] *= scale * (PLUS_ONE ? 1 + weights[v] : weights[v]);
}

// The row's part of this lane; past the end, zeros.
void load(Vec4s row, out vec4 part[VECTORS]) {
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        part[v] = i < p.columns ? (row + i).v : vec4(0);
    }
}

void main() {
    uint row = WITH_ROWS ? (p.rows + gl_WorkGroupID.x).v : gl_WorkGroupID.x;
    Vec4s hidden = p.hidden + uint64_t(row) * p.columns;
    // All loads are under way before the first barrier.
    vec4 residual[VECTORS], post_weights[VECTORS], weights[VECTORS], biases[VECTORS];
    float factor = WITH_FACTOR ? p.factor.v : 1;
    load(p.x + uint64_t(row) * p.x_columns, values);
    if (RESIDUAL != 0)
        load(hidden, residual);
    if (RESIDUAL == 2)
        load(p.post_weight, post_weights);
    if (WITH_NORM && KIND != NO_NORM)
        load(p.weight, weights);
    if (HAS_BIAS)
        load(p.bias, biases);

    if (RESIDUAL == 2)
        scale_values(inverse_rms(workgroup_sum(squares())), post_weights);
    if (BRANCH_SCALE != 1)
        [[unroll]] for (uint v = 0; v < VECTORS; ++v)
            values[v] *= BRANCH_SCALE;
    if (RESIDUAL != 0)
        [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
            values[v] += residual[v];
            if (WITH_FACTOR)
                values[v] *= factor;
            uint i = lane + v * WORKGROUP;
            if (!WITH_ROWS && i < p.columns)
                (hidden + i).v = values[v];
            if (RESIDUAL == 3)
                values[v] = residual[v];
        }
    if (!WITH_NORM)
        return;
    if (KIND == LAYER_NORM) {
        float mean = workgroup_sum(elements()) / float(4 * p.columns);
        [[unroll]] for (uint v = 0; v < VECTORS; ++v)
            if (lane + v * WORKGROUP < p.columns)
                values[v] -= mean;
    }
    if (KIND != NO_NORM) {
        float scale = inverse_rms(workgroup_sum(squares()));
        scale_values(OUT_SCALE != 1 ? scale * OUT_SCALE : scale, weights);
        if (HAS_BIAS)
            [[unroll]] for (uint v = 0; v < VECTORS; ++v)
                values[v] = fma(biases[v], vec4(OUT_SCALE), values[v]);
    }
    float largest = NEEDS_LARGEST ? workgroup_max(magnitude()) : 0;
    [[unroll]] for (uint v = 0; v < VECTORS; ++v) {
        uint i = lane + v * WORKGROUP;
        if (i < p.columns)
            store_part(p.y, p.y_scale, gl_WorkGroupID.x, p.columns, i, values[v], largest);
    }
    finish_row(p.y_scale, p.counters, gl_WorkGroupID.x, p.num_counters, lane, WORKGROUP, largest);
}

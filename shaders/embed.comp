#version 460
// Embedding rows of tokens, or a part of each, scaled. One invocation owns eight columns of one token (workgroup y).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "include/pointers.glsl"
#include FORMAT

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

const uint EIGHT_BYTES = 8 * ELEMENT_BYTES;

layout(push_constant, scalar) uniform P {
    uint64_t table; // (vocab, 8 * row_columns)
    Ints token_ids; // (tokens): an id, or -1 - state_index for the id that last_token holds there
    Uints last_token; // (states): written by the sampler
    Vec4s y; // (tokens, 8 * columns)
    uint columns; // in eights
    uint row_columns; // of the table, in eights
    uint first; // of these, the one that y begins with
    uint vocab;
    float scale;
} p;

void main() {
    uint column = gl_GlobalInvocationID.x;
    if (column >= p.columns)
        return;
    int given = (p.token_ids + gl_WorkGroupID.y).v;
    uint id = given < 0 ? (p.last_token + (-1 - given)).v : uint(given);
    if (id >= p.vocab)
        id = 0;
    vec4 low, high;
    unpack8(fetch8(Weights(p.table + uint64_t(id) * (p.row_columns * EIGHT_BYTES)), p.first + column), low, high);
    Vec4s y = p.y + (uint64_t(gl_WorkGroupID.y) * p.columns + column) * 2;
    y.v = low * p.scale;
    (y + 1).v = high * p.scale;
}

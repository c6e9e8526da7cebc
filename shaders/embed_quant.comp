#version 460
// Embedding rows of tokens, or a part of each, from a quantised table, scaled. One invocation owns a block of 32 columns of one token
// (workgroup y).
#extension GL_GOOGLE_include_directive : require
#include BLOCKS

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Ints { int v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Uints { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Output { vec4 v[]; };

layout(push_constant, scalar) uniform P {
    Quants quants;     // (vocab, row_blocks)
    High high;         // (vocab, row_blocks)
    Scales scales;     // (vocab, row_blocks)
    Ints token_ids;    // (tokens): an id, or -1 - state_index for the id that last_token holds there
    Uints last_token;  // (states): written by the sampler
    Output y;          // (tokens, blocks, 32)
    uint blocks;       // columns / 32
    uint row_blocks;   // of the table
    uint first;        // of these, the one that y begins with
    uint vocab;
    float scale;
} p;

#ifndef FLOAT_CODES
vec4 code_values(uint codes) {
    const int word = int(codes);
    return vec4(ivec4(bitfieldExtract(word, 0, 8), bitfieldExtract(word, 16, 8), bitfieldExtract(word, 8, 8),
                      bitfieldExtract(word, 24, 8)) - ZERO);
}
#endif

void store_group(uint to, uvec4 codes, float scale, float offset) {
    [[unroll]] for (uint w = 0; w < 4; w++) {
        p.y.v[to + w] = (code_values(codes[w]) * scale + offset) * p.scale;
    }
}

void main() {
    const uint column = gl_GlobalInvocationID.x;
    if (column >= p.blocks) {
        return;
    }
    const int given = p.token_ids.v[gl_WorkGroupID.y];
    uint id = given < 0 ? p.last_token.v[-1 - given] : uint(given);
    if (id >= p.vocab) {
        id = 0;
    }
    const uint block = id * p.row_blocks + p.first + column;
    uvec4 first, second;
    vec2 scale;
    Offset offset;
    unpack_codes(fetch_codes(p.quants, p.high, block), first, second);
    unpack_scale(fetch_scale(p.scales, block), block, scale, offset);
    const uint to = (gl_WorkGroupID.y * p.blocks + column) * 8;
    store_group(to, first, scale.x, of_group(offset, 0));
    store_group(to + 4, second, scale.y, of_group(offset, 1));
}

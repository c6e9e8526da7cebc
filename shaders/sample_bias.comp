#version 460
// Biases of single tokens, before anything else looks at a row's logits: each is added to its token's logit, or bans the
// token, whose logit becomes the smallest finite number. A workgroup owns one row.
#extension GL_EXT_buffer_reference : require
#extension GL_GOOGLE_include_directive : require
#include "include/sample.glsl"

const uint LANES = 64;
layout(local_size_x = LANES) in;  // grid: (rows)

struct Bias {  // the first of a row has the number of those behind it in place of the token
    uint token;  // each is there once
    float value;
};

layout(buffer_reference, std430, buffer_reference_align = 4) buffer BiasedLogits { float logits[]; };  // (rows, vocab)
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Biases { Bias biases[]; };  // (rows, most)

layout(push_constant) uniform P {
    BiasedLogits logits;
    Rows rows;
    Biases biases;
    uint vocab;
} p;

const float BAN = -100.0;
const float LOWEST = -3.40282346638528859812e38;

void main() {
    uint row = gl_WorkGroupID.x;
    uint first = p.rows.rows[row].biases;
    if (p.rows.rows[row].state_index == NO_STATE || first == NO_BIASES) return;
    uint count = p.biases.biases[first].token;
    for (uint i = gl_LocalInvocationID.x; i < count; i += LANES) {
        Bias bias = p.biases.biases[first + 1 + i];
        if (bias.token >= p.vocab) continue;
        uint place = row * p.vocab + bias.token;
        p.logits.logits[place] = bias.value <= BAN ? LOWEST : clean(clean(p.logits.logits[place]) + bias.value);
    }
}

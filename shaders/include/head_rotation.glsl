// RMSNorm and rotation of one head of q or k, whose halves hold its pairs (NeoX style). Whichever kernel does it, the result is
// the same: `precise` keeps compilers from rounding in ways of their own, and LANES lanes of a subgroup sum a head's squares.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

const uint HALF = HEAD_DIM / 8; // vec4s in half a head
// What a kernel declares of the rotation: AMPLITUDE multiplies the first ROTARY_PAIRS pairs, the others keep their size. A
// query at position n is multiplied by 1 + Q_GROWTH * log(1 + n / Q_PERIOD), with an integer quotient.

// (cos, sin) of an angle given in 2^-32 turns. Minimax polynomials within an eighth of a turn of each quadrant's axis.
vec2 direction(uint phase) {
    uint quadrant = (phase + 0x20000000u) >> 30;
    precise float a = float(int(phase - (quadrant << 30))) * 1.4629180792671596e-9; // 2 * pi / 2^32
    precise float b = a * a;
    precise float s = a + a * b * (-1.6666654611e-1 + b * (8.3321608736e-3 - b * 1.9515295891e-4));
    precise float c =
        1.0 - 0.5 * b + b * b * (4.166664568298827e-2 + b * (-1.388731625493765e-3 + b * 2.443315711809948e-5));
    vec2 turned = (quadrant & 1u) != 0u ? vec2(-s, c) : vec2(c, s);
    return (quadrant & 2u) != 0u ? -turned : turned;
}

// Where the pairs 4 * i to 4 * i + 3 of a token point. `freqs` are turns per position, as 0.64 fixed-point fractions.
void directions(Uvec2s freqs, uint position, uint i, out vec2 to[4]) {
    [[unroll]] for (uint j = 0; j < 4; ++j) {
        uvec2 freq = (freqs + (4 * i + j)).v;
        uint upper, lower;
        umulExtended(freq.y, position, upper, lower);
        to[j] = direction(freq.x * position + upper);
        if (AMPLITUDE != 1 && 4 * i + j < ROTARY_PAIRS)
            to[j] *= AMPLITUDE;
    }
}

// The factor of a token's queries.
float query_scale(float scale, uint position) {
    if (Q_GROWTH == 0)
        return scale;
    precise float growth = Q_GROWTH * log(float(1 + position / Q_PERIOD));
    precise float grown = scale * (1 + growth);
    return grown;
}

void rotate(vec2 to[4], inout vec4 low, inout vec4 high) {
    [[unroll]] for (uint j = 0; j < 4; ++j) {
        precise float first = low[j] * to[j].x - high[j] * to[j].y;
        precise float second = high[j] * to[j].x + low[j] * to[j].y;
        low[j] = first;
        high[j] = second;
    }
}

// The factor of a head's norm, beside its weights; all lanes call together.
float norm_scale(Vec4s head, float eps) {
    if (!WITH_NORM)
        return 1;
    precise float squares = 0;
    for (uint i = gl_SubgroupInvocationID % LANES; i < HEAD_DIM / 8; i += LANES) {
        vec4 low = (head + 2 * i).v, high = (head + 2 * i + 1).v;
        squares += dot(low, low) + dot(high, high);
    }
    for (uint step = 1; step < LANES; step *= 2)
        squares += subgroupShuffleXor(squares, step);
    precise float mean = squares / float(HEAD_DIM) + eps;
    return inversesqrt(mean);
}

// Norms the vec4s i of a head's halves.
void norm_pairs(Vec4s weight, uint i, float scale, inout vec4 low, inout vec4 high) {
    if (!WITH_NORM)
        return;
    vec4 low_weight = (weight + i).v, high_weight = (weight + i + HALF).v;
    low *= scale * (PLUS_ONE ? 1 + low_weight : low_weight);
    high *= scale * (PLUS_ONE ? 1 + high_weight : high_weight);
}

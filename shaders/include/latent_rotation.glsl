// Rotation of what has a position of latent attention's queries and keys. Included behind the constants ROTARY_DIM,
// IS_INTERLEAVED and those of head_rotation.glsl.
#define HEAD_DIM ROTARY_DIM // for head_rotation.glsl: nothing else of a head rotates, and no norm goes with it
const bool WITH_NORM = false, PLUS_ONE = false;
const uint LANES = 1;
#include "include/head_rotation.glsl"

// Four elements of what rotates, from 4 * i on; pairs lie in halves of the result, however they do in the source.
vec4 rotated_quad(Vec4s source, Uvec2s freqs, uint position, uint i) {
    uint pair = i % HALF;
    vec4 low, high;
    if (IS_INTERLEAVED) {
        vec4 first = (source + 2 * pair).v, second = (source + 2 * pair + 1).v;
        low = vec4(first.xz, second.xz);
        high = vec4(first.yw, second.yw);
    } else {
        low = (source + pair).v;
        high = (source + pair + HALF).v;
    }
    vec2 to[4];
    directions(freqs, position, pair, to);
    rotate(to, low, high);
    return i < HALF ? low : high;
}

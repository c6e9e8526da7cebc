// Blocks of 32, codes of -8 to 7, stored with 8 added. The element of the largest magnitude becomes -8 times the scale (the
// scale's sign is chosen for that), or, where that makes the sum of squared errors smaller, -7 to -9.5 times, cut to -8.
const uint UNIT = 32;
#include "quant/pack/nibbles.glsl"
#include "quantize/scale.glsl"

const float DIVISORS[6] = {8.0, 7.0, 7.5, 8.5, 9.0, 9.5};

float squared_error(vec4 values[UNIT / 4], float scale) {
    const float factor = scale == 0.0 ? 0.0 : 1.0 / scale;
    vec4 sum = vec4(0.0);
    [[unroll]] for (uint i = 0; i < UNIT / 4; i++) {
        const vec4 error = values[i] - clamp(roundEven(values[i] * factor), -8.0, 7.0) * scale;
        sum += error * error;
    }
    return sum.x + sum.y + sum.z + sum.w;
}

uint chosen_scale(vec4 values[UNIT / 4]) {
    vec4 low = vec4(0.0);
    vec4 high = vec4(0.0);
    [[unroll]] for (uint i = 0; i < UNIT / 4; i++) {
        low = min(low, values[i]);
        high = max(high, values[i]);
    }
    const float lowest = min(min(low.x, low.y), min(low.z, low.w));
    const float highest = max(max(high.x, high.y), max(high.z, high.w));
    const uint sign_bit = highest > -lowest ? 0x8000u : 0u;
    uint best = 0;
    float least = 0.0;
    for (uint i = 0; i < 6; i++) {
        const uint bits = half_above(max(highest, -lowest) / DIVISORS[i]) | sign_bit;
        const float error = squared_error(values, unpackHalf2x16(bits).x);
        if (i == 0 || error < least) {
            best = bits;
            least = error;
        }
    }
    return best;
}

ivec4 codes_of(vec4 scaled) {
    return clamp(ivec4(roundEven(scaled)), -8, 7) + 8;
}

// Blocks of 64, codes of 0 to 15 for the nearest of 16 levels. The scale is the smallest half that brings the largest
// magnitude to the outer level, 127, at most.
const uint UNIT = 64;
#include "quant/pack/planes.glsl"
#include "quant/tables/nf4.glsl"
#include "quantize/scale.glsl"

uint chosen_scale(vec4 values[UNIT / 4]) {
    return half_above(magnitude(values) / 127.0);
}

float level(uint index) {
    return float(bitfieldExtract(int(TABLE[index / 4]), int(index % 4) * 8, 8));
}

ivec4 codes_of(vec4 scaled) {
    ivec4 codes = ivec4(0);
    [[unroll]] for (uint i = 0; i < 15; i++) {
        codes += ivec4(greaterThan(scaled, vec4(0.5 * (level(i) + level(i + 1)))));
    }
    return codes;
}

// Blocks of 32, codes of -127 to 127. The scale is the smallest half that brings the largest magnitude to 127 at most, so
// that nothing is cut and no element is off by more than half a scale.
const uint UNIT = 32;
#include "quant/pack/bytes.glsl"
#include "quantize/scale.glsl"

uint chosen_scale(vec4 values[UNIT / 4]) {
    return half_above(magnitude(values) / 127.0);
}

ivec4 codes_of(vec4 scaled) {
    return clamp(ivec4(roundEven(scaled)), -127, 127);
}

// To half precision, rounded to nearest; what a half can't hold becomes the largest one of its sign.
#define DST_ELEMENT float16_t

const uint LARGEST = 0x477fe000u;  // the bits of 65504.0

float16_t narrowed(float value) {
    return float16_t(clamp(value, -65504.0, 65504.0));
}

void store8(Blocks dst, uint block, Raw8 raw, vec4 low, vec4 high) {
    dst.v[block] = half8(raw);
}

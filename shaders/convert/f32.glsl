// To single precision, which holds every value of the narrower types.
#define DST_ELEMENT float

const uint LARGEST = 0xffffffffu;

float narrowed(float value) {
    return value;
}

void store8(Blocks dst, uint block, Raw8 raw, vec4 low, vec4 high) {
    dst.v[2 * block] = floatBitsToUint(low);
    dst.v[2 * block + 1] = floatBitsToUint(high);
}

// Brings keys and values into blocks of 32 signed bytes: x ≈ code * scale, rounded to the nearest code. The scale is the
// smallest half that brings the block's largest magnitude to 127 or less, so no code saturates.
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer KvCodeStore { uint v; };
layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly buffer KvScaleStore { uint16_t v; };

const float KV_LARGEST = 65468.5; // 127 * 515.5: what blocks stand for are halves
const uint KV_LARGEST_SCALE = 0x6007; // 515.5 as a half

// The bits of the smallest half that is not below `wanted`, and its value, by integers: drivers round halves in their own ways.
uint kv_scale_bits(float wanted, out float scale) {
    if (wanted < 6.103515625e-5) { // 2^-14: below it, halves are multiples of 2^-24
        uint bits = uint(ceil(wanted * 16777216.0));
        scale = float(bits) / 16777216.0;
        return bits;
    }
    uint bits = min((floatBitsToUint(wanted) + 0x1fffu >> 13) - (112u << 10), KV_LARGEST_SCALE);
    scale = uintBitsToFloat(bits + (112u << 10) << 13);
    return bits;
}

float kv_largest(vec4 value) {
    vec4 sizes = abs(value);
    return max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
}

uint kv_codes(vec4 value, float scale) {
    ivec4 rounded = scale > 0 ? ivec4(clamp(roundEven(value / scale), -127, 127)) : ivec4(0);
    return (rounded.x & 0xff) | (rounded.y & 0xff) << 8 | (rounded.z & 0xff) << 16 | rounded.w << 24;
}

// Writes the four elements of a row that begin at `element`; eight neighbouring lanes of a subgroup have a block.
void kv_quantize4(uint64_t codes, uint64_t scales, uint element, vec4 value) {
    value = clamp(value, -KV_LARGEST, KV_LARGEST);
    float magnitude = kv_largest(value);
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 1));
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 2));
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 4));
    float scale;
    uint bits = kv_scale_bits(magnitude / 127.0, scale);
    KvCodeStore(codes + element).v = kv_codes(value, scale);
    if (element % 32 == 0)
        KvScaleStore(scales + element / 32 * 2).v = uint16_t(bits);
}

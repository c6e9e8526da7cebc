// Scales of MXFP4, of which a file has exponents.
layout(buffer_reference, scalar, buffer_reference_align = 2) writeonly restrict buffer Scales { uint16_t v[]; };

// 2^(e - 128) in half precision, half of what the byte means since levels are doubled: below 2^-24 zero, from 2^16 on infinity.
uint16_t half_scale(uint e) {
    const uint subnormal = e < 104 ? 0u : 1u << (e - 104);
    return uint16_t(e < 114 ? subnormal : min(e - 113, 31u) << 10);
}

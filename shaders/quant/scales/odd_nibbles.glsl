// 10 bytes for 8 blocks: a half-precision scale for all of them, in units of SCALE_STEP, then a nibble s of scale for each of 16
// groups, which means 2 s + 1.

layout(buffer_reference, scalar, buffer_reference_align = 2) readonly restrict buffer Scales { uint16_t v[]; };

const bool GROUPS_DIFFER = true;
const bool HAS_OFFSET = false;

#define Scale uint
#define Offset float

Scale fetch_scale(Scales scales, uint block) {
    const uint first = block / 8 * 5;
    return uint(scales.v[first]) | uint(scales.v[first + 1 + (block & 7u) / 2]) << 16;
}

void unpack_scale(Scale raw, uint block, out vec2 scale, out Offset offset) {
    const uint pair = raw >> (16u + (block & 1u) * 8u);
    const float shared_scale = unpackHalf2x16(raw).x * SCALE_STEP;
    scale = shared_scale * vec2(float((pair & 15u) * 2u + 1u), float((pair >> 4 & 15u) * 2u + 1u));
    offset = 0.0;
}

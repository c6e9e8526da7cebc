// 20 bytes for 8 blocks: 8 bits of scale, signed, for each of 16 groups, then a half-precision scale for all of them.

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Scales { uint v[]; };

const bool GROUPS_DIFFER = true;
const bool HAS_OFFSET = false;

#define Scale uvec2
#define Offset float

Scale fetch_scale(Scales scales, uint block) {
    const uint first = block / 8 * 5;
    return uvec2(scales.v[first + (block & 7u) / 2], scales.v[first + 4]);
}

void unpack_scale(Scale raw, uint block, out vec2 scale, out Offset offset) {
    const int pair = int(raw.x >> ((block & 1u) * 16u));
    const float shared_scale = unpackHalf2x16(raw.y).x;
    scale = shared_scale * vec2(float(bitfieldExtract(pair, 0, 8)), float(bitfieldExtract(pair, 8, 8)));
    offset = 0.0;
}

// 20 bytes for 8 blocks, in the order of GGUF's Q2_K: for each of 16 groups 4 bits of scale and 4 of offset, then a half-precision
// scale and offset for all of them.

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Scales { uint v[]; };

const bool GROUPS_DIFFER = true;
const bool HAS_OFFSET = true;

#define Scale uvec2
#define Offset vec2

Scale fetch_scale(Scales scales, uint block) {
    const uint first = block / 8 * 5;
    return uvec2(scales.v[first + (block & 7u) / 2], scales.v[first + 4]);
}

void unpack_scale(Scale raw, uint block, out vec2 scale, out Offset offset) {
    const uint pair = raw.x >> ((block & 1u) * 16u);
    const vec2 both = unpackHalf2x16(raw.y);
    scale = both.x * vec2(float(pair & 15u), float(pair >> 8 & 15u));
    offset = -both.y * vec2(float(pair >> 4 & 15u), float(pair >> 12 & 15u));
}

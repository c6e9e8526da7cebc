// 8 bytes for 8 blocks, as GGUF's IQ4_XS begins: a half-precision scale for all of them, in units of SCALE_STEP, then 6 bits of
// scale a block, less 32: the upper two of each block, and the lower four.

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Scales { uint64_t v[]; };

const bool GROUPS_DIFFER = false;
const bool HAS_OFFSET = false;

#define Scale uint64_t
#define Offset float

Scale fetch_scale(Scales scales, uint block) {
    return scales.v[block / 8];
}

void unpack_scale(Scale raw, uint block, out vec2 scale, out Offset offset) {
    const uvec2 words = unpack32(raw);
    const uint place = block & 7u;
    const uint bits = words.y >> 4 * place & 15u | (words.x >> (16 + 2 * place) & 3u) << 4;
    scale = vec2(unpackHalf2x16(words.x).x * (SCALE_STEP * float(int(bits) - 32)));
    offset = 0.0;
}

// A half-precision scale for every SCALE_BLOCKS blocks.

layout(buffer_reference, scalar, buffer_reference_align = 2) readonly restrict buffer Scales { float16_t v[]; };

const bool GROUPS_DIFFER = false;
const bool HAS_OFFSET = false;

#define Scale float16_t
#define Offset float

Scale fetch_scale(Scales scales, uint block) {
    return scales.v[block / SCALE_BLOCKS];
}

void unpack_scale(Scale raw, uint block, out vec2 scale, out Offset offset) {
    scale = vec2(float(raw));
    offset = 0.0;
}

// A half-precision scale and offset for every block.

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Scales { uint v[]; };

const bool GROUPS_DIFFER = false;
const bool HAS_OFFSET = true;

#define Scale uint
#define Offset float

Scale fetch_scale(Scales scales, uint block) {
    return scales.v[block];
}

void unpack_scale(Scale raw, uint block, out vec2 scale, out Offset offset) {
    const vec2 pair = unpackHalf2x16(raw);
    scale = vec2(pair.x);
    offset = pair.y;
}

// A half-precision scale and a zero point of 16 bits for every block.

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Scales { uint v[]; };

const bool GROUPS_DIFFER = false;
const bool HAS_OFFSET = true;

#define Scale uint
#define Offset float

Scale fetch_scale(Scales scales, uint block) {
    return scales.v[block];
}

// The offset is exact: eleven bits of scale and five of zero point.
void unpack_scale(Scale raw, uint block, out vec2 scale, out Offset offset) {
    const float factor = unpackHalf2x16(raw).x;
    scale = vec2(factor);
    offset = -factor * float(raw >> 16);
}

// 16 bytes for 8 blocks, as GGUF's Q4_K and Q5_K begin: a half-precision scale and offset for all of them, then 6 bits of
// scale and 6 of offset a block, in the order that GGUF packs them in.

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Scales { u64vec2 v[]; };

const bool GROUPS_DIFFER = false;
const bool HAS_OFFSET = true;

#define Scale u64vec2
#define Offset float

Scale fetch_scale(Scales scales, uint block) {
    return scales.v[block / 8];
}

void unpack_scale(Scale raw, uint block, out vec2 scale, out Offset offset) {
    const uvec2 head = unpack32(raw.x);
    const uvec2 tail = unpack32(raw.y);
    const uint shift = (block & 3u) * 8u;
    uint scale_bits = (head.y >> shift) & 63u;
    uint offset_bits = (tail.x >> shift) & 63u;
    if ((block & 4u) != 0u) {
        const uint low = tail.y >> shift;
        scale_bits = (low & 15u) | (((head.y >> shift) & 0xc0u) >> 2);
        offset_bits = ((low >> 4) & 15u) | (((tail.x >> shift) & 0xc0u) >> 2);
    }
    const vec2 pair = unpackHalf2x16(head.x);
    scale = vec2(pair.x * float(scale_bits));
    offset = -pair.y * float(offset_bits);
}

// Elements in IEEE half precision: 8 of them in 16 bytes. Every file of this folder has the same names.

#define Raw8 uvec4

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Weights { u64vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) readonly restrict buffer WeightElements { float16_t v[]; };

// Elements 8 * index to 8 * index + 7, as they lie in memory. The words have 64 bits because a software driver loads lane
// by lane and word by word; a GPU loads all 16 bytes at once either way.
Raw8 fetch8(Weights weights, uint index) {
    const u64vec2 words = weights.v[index];
    return uvec4(unpack32(words.x), unpack32(words.y));
}

void unpack8(Raw8 raw, out vec4 low, out vec4 high) {
    low = vec4(unpackHalf2x16(raw.x), unpackHalf2x16(raw.y));
    high = vec4(unpackHalf2x16(raw.z), unpackHalf2x16(raw.w));
}

// The 8 elements as half precision, packed in their order.
uvec4 half8(Raw8 raw) {
    return raw;
}

float fetch1(Weights weights, uint index) {
    return float(WeightElements(weights).v[index]);
}

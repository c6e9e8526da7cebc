// Key/value cache of f16 elements. A row is one head's key or value of one token, a multiple of 8 elements.

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer KvLoad { uvec4 v; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer KvStore { uvec2 v; };

layout(buffer_reference, scalar, buffer_reference_align = 16) buffer KvWords { u64vec2 v; };

const uint KV_BYTES = 2;
const uint KV_OCTETS = 1; // of 8 elements, in what a lane loads at once

// Where a row of the cache lies. Blocks may be far apart: their numbers go by addresses (docs/architecture.md).
#define KvRow uint64_t

KvRow kv_row(uint64_t cache, uint slot, uint kv_head, uint num_kv_heads, uint head_dim, uint block_size) {
    uint head_bytes = block_size * head_dim * KV_BYTES;
    return cache + kv_head * head_bytes + uint64_t(slot / block_size) * (num_kv_heads * head_bytes) +
           slot % block_size * (head_dim * KV_BYTES);
}

// The lane of the workgroup, for kv_store4.
uint kv_lane() {
    return gl_LocalInvocationID.x;
}

// 8 elements as they lie in memory, in words of 64 bits as the weights are (quant/f16.glsl).
#define KvRaw u64vec2

KvRaw kv_fetch(KvRow row, uint element) {
    return KvWords(row + element * KV_BYTES).v;
}

// What the elements of kv_unpack8 are to be multiplied with.
float kv_scale(KvRaw raw) {
    return 1;
}

void kv_unpack8(KvRaw raw, uint octet, out vec4 low, out vec4 high) {
    uvec2 first = unpack32(raw.x), second = unpack32(raw.y);
    low = vec4(unpackHalf2x16(first.x), unpackHalf2x16(first.y));
    high = vec4(unpackHalf2x16(second.x), unpackHalf2x16(second.y));
}

#ifdef WITH_QUERIES
#include "include/kv_float_query.glsl"
#endif

void kv_load8(KvRow row, uint element, out vec4 low, out vec4 high) {
    uvec4 packed = KvLoad(row + element * KV_BYTES).v;
    low = vec4(unpackHalf2x16(packed.x), unpackHalf2x16(packed.y));
    high = vec4(unpackHalf2x16(packed.z), unpackHalf2x16(packed.w));
}

// The nearest halves, 65504 at most, by integers: drivers round halves in their own ways.
uvec2 kv_halves(vec4 value) {
    uvec4 bits = min(floatBitsToUint(abs(value)), uvec4(0x477fe000u));
    uvec4 normal = (bits + 0xfffu + (bits >> 13 & 1u) >> 13) - (112u << 10);
    const uvec4 least = uvec4(0x38800000u); // 2^-14: below it, halves are multiples of 2^-24
    uvec4 small = uvec4(roundEven(uintBitsToFloat(min(bits, least)) * 16777216.0));
    uvec4 halves = mix(normal, small, lessThan(bits, least)) | floatBitsToUint(value) >> 16 & 0x8000u;
    return halves.xz | halves.yw << 16;
}

void kv_store4(KvRow row, uint element, vec4 value) {
    KvStore(row + element * KV_BYTES).v = kv_halves(value);
}

// What kv_fetch would get where these values were stored.
KvRaw kv_pack(vec4 values[2 * KV_OCTETS]) {
    return u64vec2(pack64(kv_halves(values[0])), pack64(kv_halves(values[1])));
}

void kv_store(KvRow row, uint element, KvRaw raw) {
    KvWords(row + element * KV_BYTES).v = raw;
}

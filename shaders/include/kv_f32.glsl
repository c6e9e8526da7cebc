// Key/value cache of f32 elements. A row is one head's key or value of one token, a multiple of 8 elements.
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer KvFloats { vec4 v; };

const uint KV_BYTES = 4;
const uint KV_OCTETS = 1; // see kv_f16.glsl for the names

#define KvRow uint64_t

KvRow kv_row(uint64_t cache, uint slot, uint kv_head, uint num_kv_heads, uint head_dim, uint block_size) {
    uint head_bytes = block_size * head_dim * KV_BYTES;
    return cache + kv_head * head_bytes + uint64_t(slot / block_size) * (num_kv_heads * head_bytes) +
           slot % block_size * (head_dim * KV_BYTES);
}

uint kv_lane() {
    return gl_LocalInvocationID.x;
}

struct KvRaw { // 8 elements
    vec4 low;
    vec4 high;
};

KvRaw kv_fetch(KvRow row, uint element) {
    KvFloats at = KvFloats(row + element * KV_BYTES);
    return KvRaw(at.v, (at + 1).v);
}

float kv_scale(KvRaw raw) {
    return 1;
}

void kv_unpack8(KvRaw raw, uint octet, out vec4 low, out vec4 high) {
    low = raw.low;
    high = raw.high;
}

#ifdef WITH_QUERIES
#include "include/kv_float_query.glsl"
#endif

void kv_load8(KvRow row, uint element, out vec4 low, out vec4 high) {
    KvFloats at = KvFloats(row + element * KV_BYTES);
    low = at.v;
    high = (at + 1).v;
}

void kv_store4(KvRow row, uint element, vec4 value) {
    KvFloats(row + element * KV_BYTES).v = value;
}

KvRaw kv_pack(vec4 values[2 * KV_OCTETS]) {
    return KvRaw(values[0], values[1]);
}

void kv_store(KvRow row, uint element, KvRaw raw) {
    kv_store4(row, element, raw.low);
    kv_store4(row, element + 4, raw.high);
}

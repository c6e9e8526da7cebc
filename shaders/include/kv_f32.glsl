// Key/value cache of f32 elements. A row is one head's key or value of one token, a multiple of 8 elements.
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer KvFloats { vec4 v; };

const uint KV_BYTES = 4;

struct KvRaw { // 8 elements
    vec4 low;
    vec4 high;
};

KvRaw kv_fetch8(uint64_t row, uint element) {
    KvFloats at = KvFloats(row + element * KV_BYTES);
    return KvRaw(at.v, (at + 1).v);
}

void kv_unpack8(KvRaw raw, out vec4 low, out vec4 high) {
    low = raw.low;
    high = raw.high;
}

void kv_load8(uint64_t row, uint element, out vec4 low, out vec4 high) {
    KvFloats at = KvFloats(row + element * KV_BYTES);
    low = at.v;
    high = (at + 1).v;
}

void kv_store4(uint64_t row, uint element, vec4 value) {
    KvFloats(row + element * KV_BYTES).v = value;
}

// What matrix kernels stage of a cache of f16 elements: 8 halves at a time.
#include "include/kv_f16.glsl"

#define KvStaged uvec4

KvStaged kv_fetch_staged(KvRow row, uint element) {
    return KvLoad(row + element * KV_BYTES).v;
}

uvec4 kv_halves(KvStaged staged, uint octet) {
    return staged;
}

// What matrix kernels stage of a cache of signed bytes: 16 elements at a time, which become halves on the way.
#include "include/kv_int8.glsl"

#define KvStaged KvRaw

KvStaged kv_fetch_staged(KvRow row, uint element) {
    return kv_fetch(row, element);
}

uint scaled_pair(vec2 codes, float scale) {
    return packFloat2x16(f16vec2(codes) * float16_t(scale));
}

uvec4 kv_halves(KvStaged staged, uint octet) {
    vec4 low, high;
    kv_unpack8(staged, octet, low, high);
    return uvec4(scaled_pair(low.xy, staged.scale), scaled_pair(low.zw, staged.scale), scaled_pair(high.xy, staged.scale),
                 scaled_pair(high.zw, staged.scale));
}

// A query's elements that meet those of a KvRaw, as x ≈ (128 high + low) * scale: products of bytes, as a key's codes are, and next to
// nothing lost (a 16,384th of the largest at most). The scale is a power of two: all devices have the same codes.
#extension GL_EXT_integer_dot_product : require

struct KvQuery {
    uvec4 high;
    uvec4 low;
    float scale; // NaN where an element is no number, or infinite
};

#define KvKey KvRaw

const float KV_FINITE = 3.4028234e38;

uint kv_bytes(ivec4 codes) {
    return (codes.x & 0xff) | (codes.y & 0xff) << 8 | (codes.z & 0xff) << 16 | codes.w << 24;
}

KvQuery kv_query(vec4 values[2 * KV_OCTETS]) {
    float magnitude = 0, sum = 0;
    [[unroll]] for (uint i = 0; i < 2 * KV_OCTETS; ++i) {
        magnitude = max(magnitude, kv_largest(values[i]));
        sum += dot(abs(values[i]), vec4(1));
    }
    uint exponent = max(floatBitsToUint(magnitude) >> 23, 14u); // codes are below 2^14
    float codes = uintBitsToFloat(267 - exponent << 23);
    KvQuery query;
    query.scale = sum <= KV_FINITE ? uintBitsToFloat(exponent - 13 << 23) : uintBitsToFloat(0x7fc00000u);
    [[unroll]] for (uint i = 0; i < 2 * KV_OCTETS; ++i) {
        ivec4 code = min(ivec4(roundEven(values[i] * codes)), 16383), high = min(code + 64 >> 7, 127);
        query.high[i] = kv_bytes(high);
        query.low[i] = kv_bytes(code - (high << 7));
    }
    return query;
}

KvKey kv_key(KvRaw raw) {
    return raw;
}

float kv_score(KvQuery query, KvKey key) {
    uvec4 codes = uvec4(unpack32(key.codes.x), unpack32(key.codes.y));
    int high = 0, low = 0;
    [[unroll]] for (uint i = 0; i < 4; ++i) {
        high += dotPacked4x8EXT(int(codes[i]), int(query.high[i]));
        low += dotPacked4x8EXT(int(codes[i]), int(query.low[i]));
    }
    return float((high << 7) + low) * (query.scale * key.scale);
}

// A query's elements that meet those of a KvRaw, and a key's as they are multiplied with these. Included by caches of floats.

struct KvQuery {
    vec4 low;
    vec4 high;
};

#define KvKey KvQuery

KvQuery kv_query(vec4 values[2 * KV_OCTETS]) {
    return KvQuery(values[0], values[1]);
}

KvKey kv_key(KvRaw raw) {
    KvKey key;
    kv_unpack8(raw, 0, key.low, key.high);
    return key;
}

float kv_score(KvQuery query, KvKey key) {
    return dot(query.low, key.low) + dot(query.high, key.high);
}

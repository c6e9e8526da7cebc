// A lane's part of attention: the softmax of the keys that it has seen of each query head, and their values' sum. Included by
// attention_decode behind its constants; LANES lanes of a subgroup share a key, of which each has CHUNKS octets, and
// VALUE_CHUNKS of its value.

KvQuery q[HEADS * KEY_LOADS];
vec4 acc[HEADS * SUM_VECTORS];
float maximum[HEADS];
float sum[HEADS];

// The sum over the lanes that share a key.
float lanes_sum(float value) {
    if (LANES == gl_SubgroupSize)
        return subgroupAdd(value);
    for (uint step = 1; step < LANES; step *= 2)
        value += subgroupShuffleXor(value, step);
    return value;
}

// Begins with a context's last key, which one group of lanes takes.
void begin_with(KvRaw key[KEY_LOADS], KvRaw value[KEY_LOADS]) {
    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        float score = 0;
        [[unroll]] for (uint load = 0; load < KEY_LOADS; ++load)
            score += kv_score(q[h * KEY_LOADS + load], kv_key(key[load]));
        score = lanes_sum(score);
        if (SOFT_CAP > 0)
            score = soft_capped(score, SOFT_CAP);
        if (key_lane != 0)
            continue;
        maximum[h] = score;
        sum[h] = 1;
        [[unroll]] for (uint c = 0; c < VALUE_CHUNKS; ++c) {
            vec4 low, high;
            KvRaw raw = value[c / KV_OCTETS];
            kv_unpack8(raw, c % KV_OCTETS, low, high);
            uint i = 2 * (h * VALUE_CHUNKS + c);
            acc[i] = kv_scale(raw) * low;
            acc[i + 1] = kv_scale(raw) * high;
        }
    }
}

void score(KvRaw keys[LOADS], uint first, uint end, out float scores[SCORES]) {
    [[unroll]] for (uint u = 0; u < UNROLL; ++u) {
        [[unroll]] for (uint h = 0; h < HEADS; ++h)
            scores[u * HEADS + h] = 0;
        [[unroll]] for (uint load = 0; load < KEY_LOADS; ++load) {
            KvKey key = kv_key(keys[u * KEY_LOADS + load]);
            [[unroll]] for (uint h = 0; h < HEADS; ++h)
                scores[u * HEADS + h] += kv_score(q[h * KEY_LOADS + load], key);
        }
        [[unroll]] for (uint h = 0; h < HEADS; ++h) {
            float value = lanes_sum(scores[u * HEADS + h]);
            if (SOFT_CAP > 0)
                value = soft_capped(value, SOFT_CAP);
            scores[u * HEADS + h] = first + u * KEYS + key_lane < end ? value : LOWEST;
        }
    }
}

// Turns scores into probabilities relative to the new maxima, and rescales what has been summed.
void soften(inout float scores[SCORES]) {
    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        float highest = maximum[h];
        [[unroll]] for (uint u = 0; u < UNROLL; ++u)
            highest = max(highest, scores[u * HEADS + h]);
        float rescale = exp(maximum[h] - highest);
        maximum[h] = highest;
        sum[h] *= rescale;
        [[unroll]] for (uint i = 0; i < SUM_VECTORS; ++i)
            acc[h * SUM_VECTORS + i] *= rescale;
        [[unroll]] for (uint u = 0; u < UNROLL; ++u) {
            float value = scores[u * HEADS + h];
            float probability = value > LOWEST ? exp(value - highest) : 0;
            sum[h] += probability;
            scores[u * HEADS + h] = probability;
        }
    }
}

void accumulate(KvRaw values[LOADS], float probabilities[SCORES]) {
    [[unroll]] for (uint u = 0; u < UNROLL; ++u)
        [[unroll]] for (uint c = 0; c < VALUE_CHUNKS; ++c) {
            vec4 low, high;
            KvRaw raw = values[u * KEY_LOADS + c / KV_OCTETS];
            kv_unpack8(raw, c % KV_OCTETS, low, high);
            [[unroll]] for (uint h = 0; h < HEADS; ++h) {
                uint i = 2 * (h * VALUE_CHUNKS + c);
                float weight = probabilities[u * HEADS + h] * kv_scale(raw);
                acc[i] += weight * low;
                acc[i + 1] += weight * high;
            }
        }
}

// Joins what the subgroup's groups of LANES lanes have, so that each of them has it all.
void merge_groups() {
    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        float highest = subgroupMax(maximum[h]);
        float scale = exp(maximum[h] - highest);
        maximum[h] = highest;
        sum[h] *= scale;
        [[unroll]] for (uint i = 0; i < SUM_VECTORS; ++i)
            acc[h * SUM_VECTORS + i] *= scale;
        for (uint step = LANES; step < gl_SubgroupSize; step *= 2) {
            sum[h] += subgroupShuffleXor(sum[h], step);
            [[unroll]] for (uint i = 0; i < SUM_VECTORS; ++i)
                acc[h * SUM_VECTORS + i] += subgroupShuffleXor(acc[h * SUM_VECTORS + i], step);
        }
    }
}

// What the attention kernels share: where a key lies, which keys a query sees, and the soft cap.
const uint NO_WINDOW = 0;

// The slot of the cache that holds a token's keys and values.
uint cache_slot(Uints table, uint token, uint block_size) {
    return (table + token / block_size).v * block_size + token % block_size;
}

// The first key that a query sees which has `context` tokens, itself included.
uint first_key(uint context, uint window) {
    return window != NO_WINDOW && context > window ? context - window : 0;
}

// What a head's sink adds to the sum of a softmax whose exponents are relative to `maximum`: it is a logit, and has no value. Its
// bound, beyond which nothing is left of the values, keeps the sum finite.
float sink_share(float sink, float maximum) {
    return exp(min(sink - maximum, 80.0));
}

// cap * tanh(score / cap), with a tanh that neither overflows nor depends on the driver's
float soft_capped(float score, float cap) {
    float e = exp(-2 * abs(score) / cap);
    return sign(score) * cap * (1 - e) / (1 + e);
}

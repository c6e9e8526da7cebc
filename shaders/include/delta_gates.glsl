// What the gated delta rule takes of a token for a head of values: a share of what is new, and the logarithm of a decay.
// Behind KEY_HEADS, VALUE_HEADS, TILED and RATES, which are the kernel's constants.

#include "include/softplus.glsl"

// `x` is before its sigmoid
float beta_of(float x) {
    return 1 / (1 + exp(min(-x, 80.0)));
}

// `decay` is the logarithm of a rate, or the rate below zero; `x` is before its softplus
float log_decay(float decay, float x) {
    return -(RATES ? -decay : exp(decay)) * softplus(x);
}

uint key_head_of(uint head) {
    return TILED ? head % KEY_HEADS : head / (VALUE_HEADS / KEY_HEADS);
}

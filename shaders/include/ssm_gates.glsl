// What Mamba-2's recurrence takes of a token for a head of values: its step, and the logarithm of a decay. Behind KEY_HEADS,
// VALUE_HEADS and RATES, which are the kernel's constants.
#include "include/softplus.glsl"

// `x` is before its softplus; steps have bounds
float step_of(float x, vec2 bounds) {
    return clamp(softplus(x), bounds.x, bounds.y);
}

// `rate` is the logarithm of a rate, or the rate below zero
float log_decay(float rate, float step) {
    return -(RATES ? -rate : exp(rate)) * step;
}

uint key_head_of(uint head) {
    return head / (VALUE_HEADS / KEY_HEADS);
}

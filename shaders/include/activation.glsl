// Activations of a gated FFN, by number: 0 is GELU by tanh, 1 is SiLU, 2 is the clamped SwiGLU of gpt-oss.
const uint CLAMPED_SWIGLU = 2;
const float SWIGLU_LIMIT = 7.0;
const float SWIGLU_ALPHA = 1.702;

// value * sigmoid(x); exp's argument is bounded, so that nothing overflows
vec4 sigmoid_times(vec4 value, vec4 x) {
    return value / (1 + exp(min(-x, 80.0)));
}

vec4 act(uint which, vec4 gate) {
    if (which == 1)
        return sigmoid_times(gate, gate);
    // 0.5 * (1 + tanh(u)) = sigmoid(2 * u), which needs no tanh
    vec4 bounded = clamp(gate, -100.0, 100.0);
    return sigmoid_times(gate, 1.5957691216057308 * (bounded + 0.044715 * bounded * bounded * bounded));
}

// What becomes of gates and what they are for.
vec4 glu(uint which, vec4 gate, vec4 up) {
    if (which == CLAMPED_SWIGLU) {
        vec4 bounded = min(gate, SWIGLU_LIMIT);
        return sigmoid_times(bounded, SWIGLU_ALPHA * bounded) * (clamp(up, -SWIGLU_LIMIT, SWIGLU_LIMIT) + 1);
    }
    return act(which, gate) * up;
}

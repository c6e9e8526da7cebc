// Activations of a gated FFN, by number: 0 is GELU by tanh, 1 is SiLU.

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

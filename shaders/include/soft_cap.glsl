// cap * tanh(value / cap), to 1e-6 of the cap; exp's argument is bounded, so nothing overflows.
float soft_cap(float value, float cap) {
    const float ratio = min(abs(value) / cap, 12.0);
    // Below 1/8 the exponential would cancel; the series' next term is under 1e-9 of the ratio there.
    const float square = ratio * ratio;
    const float series =
        ratio * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * 62.0 / 2835.0))));
    const float exponential = 1.0 - 2.0 / (exp(2.0 * ratio) + 1.0);
    const float magnitude = cap * (ratio < 0.125 ? series : exponential);
    return value < 0.0 ? -magnitude : magnitude;
}

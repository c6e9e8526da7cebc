// log(1 + exp(x)); the logarithm of what is near 1 would have no digits
float softplus(float x) {
    if (x > 20)
        return x;
    float e = exp(x);
    return e < 0.01 ? e * (1 - e * (0.5 - e * (1.0 / 3.0 - 0.25 * e))) : log(1 + e);
}

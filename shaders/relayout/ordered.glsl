// The place of one of eight magnitudes with a sign, among all sixteen values in their order.
uint ordered(uint magnitude, uint sign_bit) {
    return sign_bit == 0 ? 8u + magnitude : 7u - magnitude;
}

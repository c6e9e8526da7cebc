// Signs of eight elements in 7 bits: the eighth is such that they are even in number.
uint sign_of(uint seven, uint element) {
    return (seven | uint(bitCount(seven)) << 7) >> element & 1u;
}

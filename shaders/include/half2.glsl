// Two floats as halves in one word. packHalf2x16 may round towards zero; a conversion rounds to nearest.
uint half2(float low, float high) {
    return packFloat2x16(f16vec2(low, high));
}

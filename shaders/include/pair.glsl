// Two floats as halves in one word, rounded to nearest; include/half2.glsl may be there as well.
uint pair(float low, float high) {
    return packFloat2x16(f16vec2(low, high));
}

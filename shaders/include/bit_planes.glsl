// 32 bits in each of four or eight words, as matrices of bits that change places.

// Exchanges bits of a, from `by` on in each 2 `by`, with those of b below.
void exchange(inout uvec2 a, inout uvec2 b, uint by, uint below) {
    const uvec2 lower = (a & below) | ((b << by) & ~below);
    b = ((a >> by) & below) | (b & ~below);
    a = lower;
}

// Bit j of a nibble of word b becomes bit b of that nibble of word j.
uvec4 transposed(uvec4 words) {
    uvec2 a = words.xy;
    uvec2 b = words.zw;
    exchange(a, b, 2, 0x33333333u);
    uvec2 even = uvec2(a.x, b.x);
    uvec2 odd = uvec2(a.y, b.y);
    exchange(even, odd, 1, 0x55555555u);
    return uvec4(even.x, odd.x, even.y, odd.y);
}

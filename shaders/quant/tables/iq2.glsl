// The levels of IQ2_XXS, IQ2_XS and IQ2_S, a byte each: 8, 25, 43, none, then the same below zero.
const uvec2 TABLE = uvec2(0x002b1908u, 0x00d5e7f8u);

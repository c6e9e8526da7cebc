// The 16 levels of IQ3_XXS, a byte each: -62, -52, -44, -36, -28, -20, -12, -4, then the same above zero, in their order.
const uvec4 TABLE = uvec4(0xdcd4ccc2u, 0xfcf4ece4u, 0x1c140c04u, 0x3e342c24u);

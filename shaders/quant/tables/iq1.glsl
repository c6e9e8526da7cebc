// The levels of IQ1_S and IQ1_M, a byte each, eighths: -8, 0 and 8 plus one, none, then the same less one.
const uvec2 TABLE = uvec2(0x000901f9u, 0x0007fff7u);

// The 16 levels of MXFP4, a byte each, twice what E2M1 has: 0, 1, 2, 3, 4, 6, 8, 12, then the same below zero.
const uvec4 TABLE = uvec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);

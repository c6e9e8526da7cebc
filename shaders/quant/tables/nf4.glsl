// The 16 levels of nf4 in 127ths, a byte each: -127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127.
const uvec4 TABLE = uvec4(0xcebda881u, 0x00f4e9dcu, 0x2b1f140au, 0x7f5c4738u);

#version 460
// Does nothing; its manifest entry asks for a feature that no device has.
layout(local_size_x = 1) in;

void main() {}

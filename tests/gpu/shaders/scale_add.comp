#version 460
// y = x * SCALE + add, in floats. One invocation owns one element.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(constant_id = 1) const float SCALE = 1.0;
layout(constant_id = 2) const bool NEGATE = false;
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };

layout(push_constant) uniform P {
    Floats x; // (n)
    Floats y; // (n)
    uint n;
    float add;
} p;

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < p.n) {
        const float y = p.x.v[i] * SCALE + p.add;
        p.y.v[i] = NEGATE ? -y : y;
    }
}

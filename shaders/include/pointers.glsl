// Arrays behind buffer device addresses. `pointer + n` steps by n elements in 64 bits.
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float v; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Vec4s { vec4 v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Uints { uint v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Ints { int v; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Uvec2s { uvec2 v; };

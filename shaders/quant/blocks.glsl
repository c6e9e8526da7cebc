// Weights in blocks of 32 codes, in groups of 16. A weight is (code - ZERO) * scale of its group + offset of its block or group.
//
// A format's file says what ZERO is, and by its includes:
//   Quants, High, Scales     the three planes that a tensor's blocks are spread over, rows after rows
//   fetch_codes, fetch_scale what the planes hold of a block, as it lies there
//   unpack_codes             four words a group, four codes a word as bytes. A word's bytes are elements 0, 2, 1, 3 of its
//                            four: masks give neighbours as halves of a word then. Activations lie alike.
//   quad_halves              (code - ZERO) of one of a block's eight fours of weights, in their order, as halves; exact
//   unpack_scale             the groups' scales and the offset
//   Offset                   float for one of the block, vec2 where each group has its own
//   GROUPS_DIFFER            whether a block's groups have different scales
//   HAS_OFFSET               whether the offset may differ from zero
//   FLOAT_CODES              defined where codes are bytes of floats: `code_values` is what the four of a word stand for, and
//                            products are of single precision
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require

float of_group(float offset, uint group) {
    return offset;
}

float of_group(vec2 offset, uint group) {
    return offset[group];
}

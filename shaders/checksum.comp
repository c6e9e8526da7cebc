// Checksums of bytes, for finding damage: two sums over blocks of 16 bytes, modulo 2^64, of products of two words, to each
// of which a key was added that hangs on the word's place (NH: Black et al., "UMAC", 1999).
// A workgroup owns every gl_NumWorkGroups.x-th run of UNROLL * WORKGROUP blocks; what comes of it is its share of the sums.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types : require

layout(constant_id = 0) const uint WORKGROUP = 128;
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const bool NEIGHBOURS = true;  // lanes side by side load blocks side by side, as GPUs like it

const uint UNROLL = 4;  // loads in flight
const uvec4 START0 = uvec4(0x9E3779B9u, 0x7F4A7C15u, 0xF39CC060u, 0x5CEDC834u);
const uvec4 START1 = uvec4(0x1082276Bu, 0xF3A27251u, 0xF86C6A11u, 0xD0C18E95u);
const uvec4 STEP0 = uvec4(0x85EBCA6Bu, 0xC2B2AE35u, 0x27D4EB2Fu, 0x165667B1u);
const uvec4 STEP1 = uvec4(0xCC9E2D51u, 0x1B873593u, 0xE6546B65u, 0x38B34AE5u);

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Blocks { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) readonly restrict buffer Halves { uint16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Sums { u64vec2 v[]; };

layout(push_constant, scalar) uniform P {
    Blocks src;  // (blocks), then the tail
    Sums sums;   // (workgroups)
    uint blocks;
    uint tail;  // halfwords after the last whole block, 0 to 7
} p;

shared u64vec2 shares[WORKGROUP];

uint64_t product(uint a, uint b) {
    return uint64_t(a) * uint64_t(b);
}

u64vec2 share_of(uvec4 block, uint place) {
    const uvec4 a = block + START0 + place * STEP0;
    const uvec4 b = block + START1 + place * STEP1;
    return u64vec2(product(a.x, a.y) + product(a.z, a.w), product(b.x, b.z) + product(b.y, b.w));
}

uvec4 tail_block() {
    uint words[4] = uint[](0u, 0u, 0u, 0u);
    for (uint i = 0; i < p.tail; i++) {
        words[i / 2] |= uint(Halves(p.src).v[p.blocks * 8 + i]) << (16 * (i % 2));
    }
    return uvec4(words[0], words[1], words[2], words[3]);
}

uint place_of(uint first, uint lane, uint i) {
    return first + (NEIGHBOURS ? i * WORKGROUP + lane : lane * UNROLL + i);
}

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint run = UNROLL * WORKGROUP;
    const uint stride = gl_NumWorkGroups.x * run;
    u64vec2 sum = u64vec2(0);
    uint first = gl_WorkGroupID.x * run;
    for (; first + run <= p.blocks; first += stride) {
        uvec4 loaded[UNROLL];
        [[unroll]] for (uint i = 0; i < UNROLL; i++) {
            loaded[i] = p.src.v[place_of(first, lane, i)];
        }
        [[unroll]] for (uint i = 0; i < UNROLL; i++) {
            sum += share_of(loaded[i], place_of(first, lane, i));
        }
    }
    for (uint place = first + lane; place < min(first + run, p.blocks); place += WORKGROUP) {
        sum += share_of(p.src.v[place], place);
    }
    if (p.tail > 0 && gl_WorkGroupID.x == 0 && lane == 0) {
        sum += share_of(tail_block(), p.blocks);
    }
    shares[lane] = sum;
    for (uint half_size = WORKGROUP / 2; half_size > 0; half_size /= 2) {
        barrier();
        if (lane < half_size) {
            shares[lane] += shares[lane + half_size];
        }
    }
    if (lane == 0) {
        p.sums.v[gl_WorkGroupID.x] = shares[0];
    }
}

// Checksums of bytes, for finding damage: two sums over blocks of 16 bytes, modulo 2^64, of products of two words, to each
// of which a key was added that hangs on the word's place (NH: Black et al., "UMAC", 1999).
// A workgroup owns runs of UNROLL * WORKGROUP blocks; what comes of it is its share of the sums.
// On a GPU a run is a piece of memory, and workgroups take turns, so that lanes side by side read what lies side by side.
// On a CPU every lane follows UNROLL streams of its own from end to end: lanes load one after another there, so that the
// loads that wait for memory are many at once, and the CPU fetches ahead in each stream.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types : require

layout(constant_id = 0) const uint WORKGROUP = 128;
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const bool STREAMS = false;

const uint UNROLL = 4;  // loads in flight
const uvec4 START0 = uvec4(0x9E3779B9u, 0x7F4A7C15u, 0xF39CC060u, 0x5CEDC834u);
const uvec4 START1 = uvec4(0x1082276Bu, 0xF3A27251u, 0xF86C6A11u, 0xD0C18E95u);
const uvec4 STEP0 = uvec4(0x85EBCA6Bu, 0xC2B2AE35u, 0x27D4EB2Fu, 0x165667B1u);
const uvec4 STEP1 = uvec4(0xCC9E2D51u, 0x1B873593u, 0xE6546B65u, 0x38B34AE5u);

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Blocks { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Pairs { u64vec2 v[]; };
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

uvec4 block_at(uint place) {
    if (STREAMS) {
        const u64vec2 pair = Pairs(p.src).v[place];
        return uvec4(unpack32(pair.x), unpack32(pair.y));
    }
    return p.src.v[place];
}

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint workgroup = gl_WorkGroupID.x;
    const uint run = UNROLL * WORKGROUP;
    const uint all_runs = p.blocks / run;
    // Workgroups that follow streams have the same number of runs each; what is left over is all workgroups' as well.
    const uint runs = (all_runs + (STREAMS ? 0 : gl_NumWorkGroups.x - 1 - workgroup)) / gl_NumWorkGroups.x;
    const uint first = (workgroup * run + lane) * (STREAMS ? runs : 1);
    const uint next_load = STREAMS ? runs * WORKGROUP : WORKGROUP;
    const uint next_run = STREAMS ? 1 : gl_NumWorkGroups.x * run;
    u64vec2 sum = u64vec2(0);
    for (uint n = 0; n < runs; n++) {
        uvec4 loaded[UNROLL];
        [[unroll]] for (uint i = 0; i < UNROLL; i++) {
            loaded[i] = block_at(first + n * next_run + i * next_load);
        }
        [[unroll]] for (uint i = 0; i < UNROLL; i++) {
            sum += share_of(loaded[i], first + n * next_run + i * next_load);
        }
    }
    const uint rest = run * (STREAMS ? runs * gl_NumWorkGroups.x : all_runs);
    for (uint place = rest + workgroup * WORKGROUP + lane; place < p.blocks; place += gl_NumWorkGroups.x * WORKGROUP) {
        sum += share_of(block_at(place), place);
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

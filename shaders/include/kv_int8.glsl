// Key/value cache of signed bytes, with a scale in half precision for each 32 of a row: x ≈ code * scale. A row is one head's
// key or value of one token, a multiple of 64 elements. A block has for each head the codes of its tokens, (block_size,
// head_dim) bytes, and behind them their scales, (block_size, head_dim / 32).
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "include/kv_quantize.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) buffer KvCodes { u64vec2 v; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer KvHalfCodes { uint64_t v; };
layout(buffer_reference, scalar, buffer_reference_align = 2) readonly buffer KvScale { float16_t v; };

const uint KV_OCTETS = 2; // of 8 elements, in what a lane loads at once

// Where a row of the cache lies.
struct KvRow {
    uint64_t codes;
    uint64_t scales;
};

KvRow kv_row(uint64_t cache, uint slot, uint kv_head, uint num_kv_heads, uint head_dim, uint block_size) {
    uint head_bytes = block_size * head_dim / 16 * 17;
    uint64_t block = cache + kv_head * head_bytes + uint64_t(slot / block_size) * (num_kv_heads * head_bytes);
    uint token = slot % block_size;
    return KvRow(block + token * head_dim, block + block_size * head_dim + token * (head_dim / 16));
}

// The lane of the workgroup, for kv_store4: eight neighbouring lanes of a subgroup store a block together.
uint kv_lane() {
    return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
}

// 16 elements as they lie in memory, half a block, with its scale.
struct KvRaw {
    u64vec2 codes;
    float scale;
};

KvRaw kv_fetch(KvRow row, uint element) {
    return KvRaw(KvCodes(row.codes + element).v, float(KvScale(row.scales + element / 32 * 2).v));
}

#ifdef WITH_QUERIES
#include "include/kv_int8_query.glsl"
#endif

// What the elements of kv_unpack8 are to be multiplied with.
float kv_scale(KvRaw raw) {
    return raw.scale;
}

vec4 kv_unpack4(uint codes) {
    return vec4(bitfieldExtract(int(codes), 0, 8), bitfieldExtract(int(codes), 8, 8), bitfieldExtract(int(codes), 16, 8),
                int(codes) >> 24);
}

void kv_unpack8(KvRaw raw, uint octet, out vec4 low, out vec4 high) {
    uvec2 codes = unpack32(octet == 0 ? raw.codes.x : raw.codes.y);
    low = kv_unpack4(codes.x);
    high = kv_unpack4(codes.y);
}

void kv_load8(KvRow row, uint element, out vec4 low, out vec4 high) {
    uvec2 codes = unpack32(KvHalfCodes(row.codes + element).v);
    float scale = float(KvScale(row.scales + element / 32 * 2).v);
    low = kv_unpack4(codes.x) * scale;
    high = kv_unpack4(codes.y) * scale;
}

void kv_store4(KvRow row, uint element, vec4 value) {
    kv_quantize4(row.codes, row.scales, element, value);
}

// What kv_fetch would get where these values were stored; two neighbouring lanes have a block.
KvRaw kv_pack(vec4 values[2 * KV_OCTETS]) {
    float magnitude = 0;
    [[unroll]] for (uint i = 0; i < 2 * KV_OCTETS; ++i) {
        values[i] = clamp(values[i], -KV_LARGEST, KV_LARGEST);
        magnitude = max(magnitude, kv_largest(values[i]));
    }
    magnitude = max(magnitude, subgroupShuffleXor(magnitude, 1));
    KvRaw raw;
    kv_scale_bits(magnitude / 127.0, raw.scale);
    raw.codes.x = pack64(uvec2(kv_codes(values[0], raw.scale), kv_codes(values[1], raw.scale)));
    raw.codes.y = pack64(uvec2(kv_codes(values[2], raw.scale), kv_codes(values[3], raw.scale)));
    return raw;
}

void kv_store(KvRow row, uint element, KvRaw raw) {
    KvCodes(row.codes + element).v = raw.codes;
    float scale;
    if (element % 32 == 0)
        KvScaleStore(row.scales + element / 32 * 2).v = uint16_t(kv_scale_bits(raw.scale, scale));
}

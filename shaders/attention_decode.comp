#version 460
// Attention of one query token per item over the paged cache, cut into splits of the context (flash-decoding).
// One workgroup owns one split (x) for HEADS query heads of one kv head (y) of one item (z). LANES lanes share a key and
// keep a softmax of the keys that they have seen, which they need not tell anybody before the end: no lane waits for
// another subgroup while there are keys. The keys and values of UNROLL keys are under way in a lane at once. Of several splits
// the last one to be done joins what all of them left; no workgroup waits for another. The context's last key is not fetched with
// the others: every lane of the last split has its part of it at the start. With ROTATES this key is new, and so is its value:
// they are made here, and one workgroup of the kv head stores them; nothing else is read of where it does.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "include/pointers.glsl"
#include "include/attention.glsl"
#include "include/attention_splits.glsl"
#define WITH_QUERIES // of KV: what a query becomes that meets keys of the cache
#include KV
#include FORM

layout(constant_id = 0) const uint WORKGROUP = 64;
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEAD_DIM = 64; // a multiple of 8 * KV_OCTETS * LANES, and with LATENT that is one
layout(constant_id = 2) const uint HEADS = 1; // query heads of a workgroup
layout(constant_id = 3) const uint BLOCK_SIZE = 16;
layout(constant_id = 4) const uint LANES = 8; // a power of two, at most the subgroup's size
layout(constant_id = 5) const uint TILE = 64; // keys of the shortest splits
layout(constant_id = 6) const uint MAX_SPLITS = 32;
layout(constant_id = 7) const float SOFT_CAP = 0;
layout(constant_id = 8) const uint UNROLL = 1;
layout(constant_id = 9) const uint MAX_SUBGROUPS = 64; // of a workgroup; with one there are no barriers
layout(constant_id = 10) const uint NUM_HEADS = 1;
layout(constant_id = 11) const uint NUM_KV_HEADS = 1;
layout(constant_id = 12) const bool ROTATES = false; // and norms, and stores: does what rope_cache does otherwise
layout(constant_id = 13) const bool WITH_NORM = false;
layout(constant_id = 14) const bool PLUS_ONE = false; // norm weights count from 1
layout(constant_id = 15) const float EPS = 0;
layout(constant_id = 16) const float Q_SCALE = 1;
layout(constant_id = 17) const float AMPLITUDE = 1;
layout(constant_id = 18) const uint ROTARY_PAIRS = 0;
layout(constant_id = 19) const float Q_GROWTH = 0;
layout(constant_id = 20) const uint Q_PERIOD = 1;
layout(constant_id = 21) const bool HAS_SINKS = false; // with which there is no norm
layout(constant_id = 22) const bool V_NORM = false; // without weights; with WITH_NORM alone
layout(constant_id = 23) const bool V_FROM_K = false; // raw q, k, v have no v heads: they are the raw k heads
layout(constant_id = 24) const uint GROWTH = 0; // of the shortest splits, with the keys
layout(constant_id = 25) const uint LATENT = 0; // values are the first so many elements of keys; 0 = they have a cache of their own

layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer Partials { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer SplitCounters { uint v[]; };

layout(push_constant, scalar) uniform P {
    Vec4s q; // (tokens, NUM_HEADS, HEAD_DIM), scaled; with ROTATES raw, (tokens, ROW_HEADS, HEAD_DIM): k and v as well
    uint64_t k_cache; // (blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    uint64_t v_cache; // as k_cache; nothing with LATENT
    OutValues y; // (tokens, NUM_HEADS, VALUE_DIM), in the form
    OutScales y_scale;
    OutCounters counters;
    Partials partials; // (items, NUM_HEADS, MAX_SPLITS, VALUE_DIM + 4)
    SplitCounters splits_done; // (items, NUM_HEADS / HEADS), zeros, and zeros again afterwards
    Uvec2s items; // (items): the sequence's row, its query's row
    Uints context_len; // (sequences)
    Uints block_table; // (sequences, max_blocks)
    Uvec2s freqs; // (HEAD_DIM / 2), as in rope_cache; this and the weights are read if ROTATES
    Vec4s q_weight; // (HEAD_DIM); with HAS_SINKS (NUM_HEADS) floats, a logit of each head
    Vec4s k_weight; // (HEAD_DIM)
    uint max_blocks;
    uint window;
    uint num_counters;
} p;

const uint VALUE_DIM = LATENT > 0 ? LATENT : HEAD_DIM;
const uint OCTETS = HEAD_DIM / 8;
const uint KEY_LOADS = (OCTETS / KV_OCTETS + LANES - 1) / LANES; // of a lane, for a key
const uint CHUNKS = KEY_LOADS * KV_OCTETS; // 8 elements each, of one key, in one lane
const bool IS_RAGGED = CHUNKS * LANES > OCTETS; // of keys, whose last chunks some lanes have, and others in their place
const uint VALUE_CHUNKS = VALUE_DIM / 8 / LANES; // of a value
const uint LANE_VECTORS = 2 * CHUNKS; // vec4s of a head in one lane
const uint SUM_VECTORS = 2 * VALUE_CHUNKS; // of a head's output
const uint QUERY_VECTORS = HEADS * LANE_VECTORS;
const uint KEYS = WORKGROUP / LANES; // keys at a time
const uint LOADS = UNROLL * KEY_LOADS; // of keys, or of values, under way in a lane
const uint SCORES = UNROLL * HEADS;
const uint COLUMNS = HEAD_DIM / 4; // vectors of a head
const uint VALUE_OCTETS = VALUE_DIM / 8, VALUE_COLUMNS = VALUE_DIM / 4; // of its output
const uint VECTORS = HEADS * VALUE_COLUMNS; // of the workgroup's output
const uint ROW_HEADS = NUM_HEADS + (ROTATES ? (V_FROM_K ? 1 : 2) * NUM_KV_HEADS : 0); // in a row of q
const uint JOINED = 8; // splits whose partials are under way in a lane at once
const float LOWEST = -1e30; // a maximum over nothing; its differences stay finite

#include "include/head_rotation.glsl"

const bool SHARES = MAX_SUBGROUPS > 1;
shared float maxima[SHARES ? HEADS * MAX_SUBGROUPS : 1];
shared float sums[SHARES ? HEADS * MAX_SUBGROUPS : 1];
shared vec4 outputs[SHARES ? MAX_SUBGROUPS * VECTORS : ROTATES ? VECTORS + COLUMNS : 1];
shared bool is_last;

uint local_lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
uint lane = local_lane % LANES;
uint key_lane = local_lane / LANES;

// The octet of a head's elements that a lane has as one of its chunks.
uint octet_of(uint chunk) {
    uint octet = (chunk / KV_OCTETS * LANES + lane) * KV_OCTETS + chunk % KV_OCTETS;
    return IS_RAGGED ? min(octet, OCTETS - KV_OCTETS + chunk % KV_OCTETS) : octet;
}

// Whether a chunk of a key is the lane's own: one that stands in for it meets zeros.
bool has_chunk(uint chunk) {
    return !IS_RAGGED || (chunk / KV_OCTETS * LANES + lane) * KV_OCTETS < OCTETS;
}

KvRow row_of(uint64_t cache, uint slot, uint kv_head) {
    return kv_row(cache, slot, kv_head, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE);
}

KvRaw fetch(KvRow row, uint load) {
    return kv_fetch(row, 8 * octet_of(load * KV_OCTETS));
}

// The elements of a head that a lane has, as vec4s.
uint vector_of(uint i) {
    return 2 * octet_of(i / 2) + i % 2;
}

#include "include/attention_sums.glsl"

// The slots of the cache with this lane's next keys; past the end, the last key stands in.
void find_slots(Uints table, uint first, uint end, out uint slots[UNROLL]) {
    [[unroll]] for (uint u = 0; u < UNROLL; ++u)
        slots[u] = cache_slot(table, min(first + u * KEYS + key_lane, end - 1), BLOCK_SIZE);
}

// Norms and rotates a token's new queries, and if it is `wanted`, the new key behind them, each once, into `outputs`. A group of
// LANES lanes takes a head; a subgroup's groups sum squares together, with or without a head of their own, as shuffles want it.
void rotate_heads(Vec4s heads, uint head, Vec4s k_head, uint position, bool wanted) {
    uint num_heads = wanted ? HEADS + 1 : HEADS, groups = gl_SubgroupSize / LANES;
    float q_scale = query_scale(Q_SCALE, position);
    for (uint first = gl_SubgroupID * groups; first < num_heads; first += KEYS) {
        uint own = first + gl_SubgroupInvocationID / LANES, h = min(own, num_heads - 1);
        bool is_key = h == HEADS;
        Vec4s source = is_key ? k_head : heads + (head + h) * COLUMNS;
        Vec4s weight = is_key ? p.k_weight : p.q_weight;
        float scale = norm_scale(source, EPS);
        if (own < num_heads)
            for (uint i = lane; i < HALF; i += LANES) {
                vec4 low = (source + i).v, high = (source + i + HALF).v;
                norm_pairs(weight, i, scale, low, high);
                vec2 to[4];
                directions(p.freqs, position, i, to);
                rotate(to, low, high);
                outputs[h * COLUMNS + i] = is_key ? low : low * q_scale;
                outputs[h * COLUMNS + i + HALF] = is_key ? high : high * q_scale;
            }
    }
}

// Waits for the workgroup's other lanes.
void meet() {
    if (SHARES)
        barrier();
    else
        subgroupBarrier();
}

void prepare(vec4 queries[QUERY_VECTORS]) {
    [[unroll]] for (uint load = 0; load < HEADS * KEY_LOADS; ++load) {
        vec4 part[2 * KV_OCTETS];
        [[unroll]] for (uint i = 0; i < 2 * KV_OCTETS; ++i)
            part[i] = queries[load * 2 * KV_OCTETS + i];
        q[load] = kv_query(part);
    }
}

void pack(vec4 values[LANE_VECTORS], out KvRaw raw[KEY_LOADS]) {
    [[unroll]] for (uint load = 0; load < KEY_LOADS; ++load) {
        vec4 part[2 * KV_OCTETS];
        [[unroll]] for (uint i = 0; i < 2 * KV_OCTETS; ++i)
            part[i] = values[load * 2 * KV_OCTETS + i];
        raw[load] = kv_pack(part);
    }
}

void attend(Uints table, uint kv_head, uint begin, uint end) {
    if (begin == end)
        return;
    uint slots[UNROLL];
    find_slots(table, begin, end, slots);
    for (uint first = begin; first < end; first += KEYS * UNROLL) {
        KvRaw keys[LOADS], values[LOADS];
        [[unroll]] for (uint i = 0; i < LOADS; ++i)
            keys[i] = fetch(row_of(p.k_cache, slots[i / KEY_LOADS], kv_head), i % KEY_LOADS);
        [[unroll]] for (uint i = 0; i < LOADS; ++i)
            values[i] = LATENT > 0 ? keys[i] : fetch(row_of(p.v_cache, slots[i / KEY_LOADS], kv_head), i % KEY_LOADS);
        find_slots(table, first + KEYS * UNROLL, end, slots);
        float scores[SCORES];
        score(keys, first, end, scores);
        soften(scores);
        accumulate(values, scores);
    }
}

// The sum of a head's whole softmax, of what its keys add up to relative to their maximum.
float with_sink(float total, float highest, uint head) {
    return HAS_SINKS ? total + sink_share((Floats(uint64_t(p.q_weight)) + head).v, highest) : total;
}

#include "include/attention_join.glsl"

void main() {
    uint item = gl_WorkGroupID.z;
    uint sequence = (p.items + item).v.x, token = (p.items + item).v.y;
    uint context = (p.context_len + sequence).v;
    uint first = first_key(context, p.window);
    uint split_keys = keys_per_split(context - first, TILE, GROWTH, MAX_SPLITS);
    uint begin = first + gl_WorkGroupID.x * split_keys;
    if (begin >= context)
        return;
    uint end = min(begin + split_keys, context);

    uint head = gl_WorkGroupID.y * HEADS; // the first of the workgroup's query heads
    const uint GROUP = NUM_HEADS / NUM_KV_HEADS;
    uint kv_head = head / GROUP;
    Uints table = p.block_table + uint64_t(sequence) * p.max_blocks;

    if (gl_WorkGroupID.xy == uvec2(0)) {
        if (local_lane == 0)
            begin_row(p.y_scale, token);
        if (item == 0)
            clear_counters(p.counters, p.num_counters, local_lane, WORKGROUP);
    }

    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        maximum[h] = LOWEST;
        sum[h] = 0;
    }
    [[unroll]] for (uint i = 0; i < HEADS * SUM_VECTORS; ++i)
        acc[i] = vec4(0);

    bool has_last = end == context;
    Vec4s heads = p.q + uint64_t(token * ROW_HEADS) * COLUMNS;
    vec4 queries[QUERY_VECTORS];
    KvRaw key[KEY_LOADS], value[KEY_LOADS];
    if (ROTATES) {
        Vec4s k_head = heads + (NUM_HEADS + kv_head) * COLUMNS;
        vec4 new_key[LANE_VECTORS], new_value[LANE_VECTORS];
        if (has_last) {
            Vec4s v_head = k_head + (V_FROM_K ? 0 : NUM_KV_HEADS * COLUMNS);
            float v_scale = V_NORM ? norm_scale(v_head, EPS) : 1;
            [[unroll]] for (uint i = 0; i < LANE_VECTORS; ++i)
                new_value[i] = V_NORM ? v_scale * (v_head + vector_of(i)).v : (v_head + vector_of(i)).v;
        }
        rotate_heads(heads, head, k_head, context - 1, has_last);
        meet();
        [[unroll]] for (uint i = 0; i < QUERY_VECTORS; ++i)
            queries[i] = outputs[i / LANE_VECTORS * COLUMNS + vector_of(i % LANE_VECTORS)];
        if (has_last) {
            [[unroll]] for (uint i = 0; i < LANE_VECTORS; ++i)
                new_key[i] = outputs[VECTORS + vector_of(i)];
            pack(new_key, key);
            pack(new_value, value);
        }
        meet(); // before the results come there
    } else {
        [[unroll]] for (uint i = 0; i < QUERY_VECTORS; ++i)
            queries[i] = has_chunk(i % LANE_VECTORS / 2)
                             ? (heads + (head + i / LANE_VECTORS) * COLUMNS + vector_of(i % LANE_VECTORS)).v
                             : vec4(0);
    }
    prepare(queries);
    if (has_last) {
        uint slot = cache_slot(table, context - 1, BLOCK_SIZE);
        KvRow key_row = row_of(p.k_cache, slot, kv_head), value_row = row_of(p.v_cache, slot, kv_head);
        [[unroll]] for (uint load = 0; load < KEY_LOADS; ++load) {
            if (!ROTATES) {
                key[load] = fetch(key_row, load);
                value[load] = LATENT > 0 ? key[load] : fetch(value_row, load);
            } else if (head % GROUP == 0 && key_lane == 0) {
                uint element = 8 * octet_of(load * KV_OCTETS);
                kv_store(key_row, element, key[load]);
                kv_store(value_row, element, value[load]);
            }
        }
        begin_with(key, value);
    }

    attend(table, kv_head, begin, has_last ? end - 1 : end);
    merge_groups();
    uint splits = num_splits(context - first, TILE, GROWTH, MAX_SPLITS);
    bool whole = splits == 1;
    if (SHARES)
        store_together(item, token, head, whole);
    else
        store_alone(item, token, head, whole);
    if (!whole && ends_splits(item, splits))
        join_splits(item, token, head, splits);
}

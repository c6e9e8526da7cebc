#version 460
// The best token of a row, and the smallest logit that top-k and top-p leave in. A workgroup owns one row.
//
// Nothing is sorted. A histogram over the distance to the best logit finds the bin in which the wanted count or
// probability mass is reached; histograms over ever smaller ranges of keys within that bin find the exact logit.
// Masses are integers (2^-31 of the best token's), so that sums do not depend on their order. Equal logits are in or
// out together.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "include/sample.glsl"

layout(constant_id = 0) const uint LANES = 256;  // at least 32
layout(constant_id = 1) const uint UNROLL = 4;  // logits that a lane has on their way at once
layout(constant_id = 2) const uint MASKED = 0;  // 1 = rows may have masks
layout(local_size_x = 256, local_size_x_id = 0) in;  // grid: (rows)

layout(push_constant) uniform P {
    Logits logits;
    Rows rows;
    Counts counts;
    Parts parts;
    RowBounds row_bounds;
    Masks masks;
    uint vocab;
    uint num_chunks;
    uint has_counts;
} p;

#include "include/sample_best.glsl"
#include "include/sample_math.glsl"
#include "include/sample_seen.glsl"

const uint BINS = 1024;
const uint BINS_LOG2 = 10;
const uint GROUPS = 32;  // of BINS / GROUPS bins each
const float BINS_PER_UNIT = 32.0;  // bins of the first histogram in a logit's difference of 1
const uint COARSE = 0;  // the first histogram's place in `bins`
const uint FINE = 3 * BINS;

shared uint bins[6 * BINS];  // two histograms of: counts, masses' low words, masses' high words
shared uint64_t group_counts[GROUPS];
shared uint64_t group_masses[GROUPS];

struct Reached {  // where a count or mass is reached, and what lies above that place
    uint bin;
    uint64_t count;
    uint64_t mass;
};

struct Range {  // what a histogram is made of
    bool is_coarse;  // all keys, by their distance from the best
    uint bin;  // else those in this bin of the coarse histogram
    uint low;  // and between these keys, both included,
    uint high;
    uint shift;  // in bins of 2^shift keys, from the highest down
};

shared Reached reached_there;

Row r;
uint row;
Best best;

uint key_at(uint id) {  // 0 = it may not come
    if (MASKED != 0 && !is_allowed(p.masks, r.mask, p.vocab, id)) return 0;
    float logit = p.logits.logits[row * p.vocab + id];
    if (r.penalised == 0 || p.has_counts == 0) return key_of(clean(logit));
    return key_of(penalised(logit, r, seen(p.counts.counts[r.state_index * p.vocab + id], id)));
}

uint mass_of(uint key) {
    if (key == best.key) return 1u << 31;
    precise float d = (value_of(key) - value_of(best.key)) * r.inverse_temperature;
    return uint(exp_of(d) * 2147483648.0 + 0.5);
}

uint coarse_bin(uint key) {
    if (key == best.key) return 0;
    return uint(min((value_of(best.key) - value_of(key)) * BINS_PER_UNIT, float(BINS - 1)));
}

void add(uint bin, uint mass) {
    atomicAdd(bins[bin], 1);
    if (mass == 0) return;
    uint old = atomicAdd(bins[bin + BINS], mass);
    if (old + mass < mass) atomicAdd(bins[bin + 2 * BINS], 1);
}

void add_in_range(uint histogram, Range range, uint key) {
    uint bin = coarse_bin(key);
    if (!range.is_coarse) {
        if (bin != range.bin || key < range.low || key > range.high) return;
        bin = (range.high - key) >> range.shift;
    }
    add(histogram + bin, mass_of(key));
}

void fill(uint histogram, Range range) {
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < 3 * BINS; i += LANES) bins[histogram + i] = 0;
    barrier();
    for (uint first = gl_LocalInvocationID.x; first < p.vocab; first += LANES * UNROLL) {
        uint keys[UNROLL];
        for (uint i = 0; i < UNROLL; ++i) keys[i] = key_at(min(first + i * LANES, p.vocab - 1));
        for (uint i = 0; i < UNROLL; ++i) {
            if (MASKED != 0 && keys[i] == 0) continue;
            if (first + i * LANES < p.vocab) add_in_range(histogram, range, keys[i]);
        }
    }
    barrier();
}

uint64_t bin_mass(uint bin) {
    return (uint64_t(bins[bin + 2 * BINS]) << 32) | bins[bin + BINS];
}

void sum_groups(uint histogram) {
    barrier();
    uint lane = gl_LocalInvocationID.x;
    if (lane < GROUPS) {
        uint64_t count = 0, mass = 0;
        for (uint i = 0; i < BINS / GROUPS; ++i) {
            uint bin = histogram + lane * (BINS / GROUPS) + i;
            count += bins[bin];
            mass += bin_mass(bin);
        }
        group_counts[lane] = count;
        group_masses[lane] = mass;
    }
    barrier();
}

uint64_t total_mass() {
    uint64_t mass = 0;
    for (uint group = 0; group < GROUPS; ++group) mass += group_masses[group];
    return mass;
}

// The first bin in which count or mass reaches the target, or the last bin; `above` is what lies above the histogram.
Reached scan(uint histogram, bool by_mass, uint64_t target, Reached above) {
    uint group = 0;
    for (; group < GROUPS - 1; ++group) {
        uint64_t count = above.count + group_counts[group], mass = above.mass + group_masses[group];
        if ((by_mass ? mass : count) >= target) break;
        above.count = count;
        above.mass = mass;
    }
    uint bin = group * (BINS / GROUPS);
    uint last = bin + BINS / GROUPS - 1;
    for (; bin < last; ++bin) {
        uint64_t count = above.count + bins[histogram + bin], mass = above.mass + bin_mass(histogram + bin);
        if ((by_mass ? mass : count) >= target) break;
        above.count = count;
        above.mass = mass;
    }
    above.bin = bin;
    return above;
}

uint shift_of(uint low, uint high) {
    return uint(max(findMSB(high - low) + 1 - int(BINS_LOG2), 0));
}

// The keys of a bin of the coarse histogram, with one bin too many on either side to make up for rounding.
Range range_of_bin(uint bin) {
    float top = value_of(best.key);
    uint high = bin == 0 ? best.key : key_of(top - float(bin - 1) / BINS_PER_UNIT);
    uint low = bin == BINS - 1 ? 0 : key_of(top - float(bin + 2) / BINS_PER_UNIT);
    return Range(false, bin, low, high, shift_of(low, high));
}

Range narrowed(Range range, uint bin) {
    uint high = range.high - min(bin << range.shift, range.high - range.low);
    uint low = high - min((1u << range.shift) - 1, high - range.low);
    return Range(false, range.bin, low, high, shift_of(low, high));
}

uint64_t share_of(uint64_t mass, uint share) {  // mass * share / 2^32, at least 1
    uint64_t low = (mass & 0xffffffffUL) * share;
    uint64_t product = (mass >> 32) * share + (low >> 32);
    return max(product, uint64_t(1));
}

// One loop for both searches, top-k's and then top-p's: compilers inline what is called in two places twice.
uint threshold() {
    bool by_mass = r.top_k == 0 || r.top_k >= p.vocab;
    if (r.inverse_temperature == 0.0 || (by_mass && r.top_p == 0)) return 0;
    const Range everything = Range(true, 0, 0, 0, 0);
    const Reached nothing = Reached(0, 0, 0);
    bool has_coarse = false;
    uint64_t target = by_mass ? 0 : r.top_k;  // 0 = a share of everything's mass
    Range range = everything;
    Reached reached = nothing;
    while (true) {
        uint histogram = range.is_coarse ? COARSE : FINE;
        if (!range.is_coarse || !has_coarse) fill(histogram, range);
        has_coarse = true;
        sum_groups(histogram);
        if (target == 0) target = share_of(total_mass(), r.top_p);
        if (gl_LocalInvocationID.x == 0) reached_there = scan(histogram, by_mass, target, reached);
        barrier();
        reached = reached_there;
        if (range.is_coarse) {
            range = range_of_bin(reached.bin);
            continue;
        }
        bool is_exact = range.shift == 0;
        range = narrowed(range, reached.bin);
        if (!is_exact) continue;
        if (by_mass || r.top_p == 0) return range.high;
        by_mass = true;
        target = share_of(reached.mass + bin_mass(FINE + reached.bin), r.top_p);
        range = everything;
        reached = nothing;
    }
}

void main() {
    row = gl_WorkGroupID.x;
    r = p.rows.rows[row];
    if (r.state_index == NO_STATE) return;
    if (r.penalised != 0 && p.has_counts != 0) gather_proposed(p.rows, row, r.proposal);
    best = Best(0, NO_TOKEN);
    for (uint chunk = gl_LocalInvocationID.x; chunk < p.num_chunks; chunk += LANES) {
        uint part = row * p.num_chunks + chunk;
        best = better(best, Best(p.parts.parts[part].key, p.parts.parts[part].id));
    }
    best = workgroup_best(best);
    uint limit = threshold();
    if (gl_LocalInvocationID.x == 0) p.row_bounds.bounds[row] = Bounds(best.key, best.id, limit, 0);
}

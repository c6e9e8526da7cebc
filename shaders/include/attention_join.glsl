// What the splits of a decode item leave for each other, and how the last one to be done joins them. Included by attention_decode
// behind its constants and push block.

// Where a split's result for a head belongs if there are others.
uint partial_row(uint item, uint head, uint split) {
    return ((item * NUM_HEADS + head) * MAX_SPLITS + split) * (VALUE_COLUMNS + 1);
}

// Counts the workgroup's split as done, once its partials can be seen; whether it is the last one.
bool ends_splits(uint item, uint splits) {
    memoryBarrierBuffer();
    meet();
    bool last = false;
    if (local_lane == 0) {
        uint at = item * gl_NumWorkGroups.y + gl_WorkGroupID.y;
        last = atomicAdd(p.splits_done.v[at], 1) == splits - 1;
        if (last)
            p.splits_done.v[at] = 0;
        if (SHARES)
            is_last = last;
    }
    if (SHARES) {
        barrier();
        last = is_last;
    } else {
        last = subgroupBroadcastFirst(last);
    }
    memoryBarrierBuffer();
    return last;
}

// The order of the sums does not depend on which split is last.
void join_splits(uint item, uint token, uint head, uint splits) {
    for (uint i = local_lane; i < VECTORS; i += WORKGROUP) {
        uint h = i / VALUE_COLUMNS, column = i % VALUE_COLUMNS;
        float highest = LOWEST, total = 0;
        vec4 value = vec4(0);
        for (uint first = 0; first < splits; first += JOINED) {
            vec2 states[JOINED]; // a split's maximum and its sum
            vec4 values[JOINED];
            [[unroll]] for (uint s = 0; s < JOINED; ++s) {
                uint row = partial_row(item, head + h, min(first + s, splits - 1));
                states[s] = p.partials.v[row + VALUE_COLUMNS].xy;
                values[s] = p.partials.v[row + column];
            }
            float before = highest;
            [[unroll]] for (uint s = 0; s < JOINED; ++s)
                highest = max(highest, states[s].x);
            float rescale = exp(before - highest);
            total *= rescale;
            value *= rescale;
            [[unroll]] for (uint s = 0; s < JOINED; ++s) {
                float scale = first + s < splits ? exp(states[s].x - highest) : 0;
                total += scale * states[s].y;
                value += scale * values[s];
            }
        }
        total = with_sink(total, highest, head + h);
        store_output(p.y, p.y_scale, token, NUM_HEADS * VALUE_COLUMNS, (head + h) * VALUE_COLUMNS + column, value / total);
    }
}

// Stores what a workgroup of one subgroup has: the result if it is the whole context, or else for who joins the splits.
void store_alone(uint item, uint token, uint head, bool whole) {
    if (key_lane != 0)
        return;
    [[unroll]] for (uint h = 0; h < HEADS; ++h) {
        if (whole) {
            float scale = 1 / with_sink(sum[h], maximum[h], head + h);
            [[unroll]] for (uint c = 0; c < VALUE_CHUNKS; c += KV_OCTETS) {
                uint i = 2 * (h * VALUE_CHUNKS + c), octet = (head + h) * VALUE_OCTETS + octet_of(c);
                if (KV_OCTETS == 1)
                    store_octet(p.y, p.y_scale, token, NUM_HEADS * VALUE_OCTETS, octet, acc[i] * scale, acc[i + 1] * scale);
                else
                    store_octets(p.y, p.y_scale, token, NUM_HEADS * VALUE_OCTETS, octet,
                                 vec4[](acc[i] * scale, acc[i + 1] * scale, acc[i + 2] * scale, acc[i + 3] * scale));
            }
            continue;
        }
        uint row = partial_row(item, head + h, gl_WorkGroupID.x);
        [[unroll]] for (uint i = 0; i < SUM_VECTORS; ++i)
            p.partials.v[row + vector_of(i)] = acc[h * SUM_VECTORS + i];
        if (lane == 0)
            p.partials.v[row + VALUE_COLUMNS] = vec4(maximum[h], sum[h], 0, 0);
    }
}

// As `store_alone`, of several subgroups, which join what they have first.
void store_together(uint item, uint token, uint head, bool whole) {
    if (gl_SubgroupInvocationID < LANES)
        [[unroll]] for (uint h = 0; h < HEADS; ++h) {
            [[unroll]] for (uint i = 0; i < SUM_VECTORS; ++i) {
                uint at = h * VALUE_COLUMNS + vector_of(i);
                outputs[gl_SubgroupID * VECTORS + at] = acc[h * SUM_VECTORS + i];
            }
            maxima[h * MAX_SUBGROUPS + gl_SubgroupID] = maximum[h];
            sums[h * MAX_SUBGROUPS + gl_SubgroupID] = sum[h];
        }
    barrier();
    for (uint i = local_lane; i < VECTORS; i += WORKGROUP) {
        uint h = i / VALUE_COLUMNS, column = i % VALUE_COLUMNS;
        float highest = LOWEST, total = 0;
        for (uint s = 0; s < gl_NumSubgroups; ++s)
            highest = max(highest, maxima[h * MAX_SUBGROUPS + s]);
        vec4 value = vec4(0);
        for (uint s = 0; s < gl_NumSubgroups; ++s) {
            float scale = exp(maxima[h * MAX_SUBGROUPS + s] - highest);
            total += scale * sums[h * MAX_SUBGROUPS + s];
            value += scale * outputs[s * VECTORS + i];
        }
        if (whole) {
            total = with_sink(total, highest, head + h);
            store_output(p.y, p.y_scale, token, NUM_HEADS * VALUE_COLUMNS, (head + h) * VALUE_COLUMNS + column, value / total);
            continue;
        }
        uint row = partial_row(item, head + h, gl_WorkGroupID.x);
        p.partials.v[row + column] = value;
        if (column == 0)
            p.partials.v[row + VALUE_COLUMNS] = vec4(highest, total, 0, 0);
    }
}

// What the splits of a decode item leave for each other, and how the last one to be done joins them. Included by attention_decode
// behind its constants and push block.

// Where a split's result for a head belongs if there are others.
uint partial_row(uint item, uint head, uint split) {
    return ((item * NUM_HEADS + head) * MAX_SPLITS + split) * (COLUMNS + 1);
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
        uint h = i / COLUMNS, column = i % COLUMNS;
        float highest = LOWEST, total = 0;
        vec4 value = vec4(0);
        for (uint first = 0; first < splits; first += JOINED) {
            vec2 states[JOINED]; // a split's maximum and its sum
            vec4 values[JOINED];
            [[unroll]] for (uint s = 0; s < JOINED; ++s) {
                uint row = partial_row(item, head + h, min(first + s, splits - 1));
                states[s] = p.partials.v[row + COLUMNS].xy;
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
        store_output(p.y, p.y_scale, token, NUM_HEADS * COLUMNS, (head + h) * COLUMNS + column, value / total);
    }
}

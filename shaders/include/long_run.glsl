// Runs of at least SHORTEST tokens go through a recurrence in chunks of CHUNK, others token by token.
const uint SHORTEST = 16;
const uint CHUNK = 32;
// What delta_chunk leaves of a token and a head of values, in vec4s: two rows of CHUNK factors, then two decays.
const uint CHUNK_VECTORS = 2 * CHUNK / 4 + 1;

// `row` is the first of its run, among num_rows of the step.
bool is_long(Runs runs, uint row, uint num_rows) {
    uint last = row + SHORTEST - 1;
    if (last >= num_rows)
        return false;
    Run there = (runs + last).v;
    return there.state_index == (runs + row).v.state_index && (there.offset & ~LAST_OF_RUN) == SHORTEST - 1;
}

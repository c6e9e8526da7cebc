// The way of a workgroup through the long run that begins in SHORTEST rows, chunk after chunk, while what the next one reads is
// under way from memory. Behind include/long_chunks.glsl and include/state_tile.glsl; whose kernel has the two functions that are
// only declared here.

shared uint ends[2]; // tokens up to the run's end, if it is among those of every second chunk

void fetch_chunk(uint row, uint num_tokens);

// Takes the chunk that was fetched, and fetches the next one, whose tokens it counts in `ends[which ^ 1]`; see below.
void step_chunk(uint row, uint num_tokens, bool is_last, uint which, out uint next_tokens);

// Where the run of a lane's token in the next chunk stands, for `find_end`.
uint next_offset(uint row, bool is_last) {
    uint after = row + CHUNK + lane;
    return !is_last && lane < CHUNK && after < p.num_rows ? (p.runs + after).v.offset : 0;
}

// Ahead of a barrier, behind which the next chunk's tokens are in `ends`; behind one more, `end_was_found`.
void find_end(uint offset, uint which) {
    if (lane < CHUNK && (offset & LAST_OF_RUN) != 0)
        atomicMin(ends[which ^ 1], lane + 1);
}

void end_was_found(uint which) {
    if (lane == 0)
        ends[which] = CHUNK + 1;
}

// At a run's end it fetches the same chunk again: compilers wait for what is loaded under a condition.
void fetch_next(uint row, uint num_tokens, bool is_last, uint next_tokens) {
    fetch_chunk(is_last ? row : row + CHUNK, is_last ? num_tokens : min(next_tokens, CHUNK));
}

void main() {
    uint begin = gl_WorkGroupID.y * SHORTEST, runs = chunks_from(begin, true);
    if (runs == 0)
        return;
    uint row = begin + findLSB(runs); // the only one: it is as long as these rows
    Run run = (p.runs + row).v;
    bool is_last;
    uint num_tokens = chunk_tokens(row, is_last);
    fetch_chunk(row, num_tokens);
    load_state(run.source, (p.positions + row).v == 0);
    if (lane < 2)
        ends[lane] = CHUNK + 1;
    barrier();
    for (uint which = 0;; which ^= 1) {
        uint kept = (p.runs + row + num_tokens - 1).v.kept, next_tokens;
        step_chunk(row, num_tokens, is_last, which, next_tokens);
        if (kept != NO_STATE)
            store_state(kept);
        if (is_last)
            break;
        row += CHUNK;
        is_last = next_tokens <= CHUNK;
        num_tokens = min(next_tokens, CHUNK);
    }
    store_state(run.state_index);
}

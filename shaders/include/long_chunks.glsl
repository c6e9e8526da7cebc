// Where chunks of long runs begin, and how long they are, found by all lanes at once. Behind the arguments p.runs and p.num_rows,
// include/run.glsl and include/long_run.glsl; a workgroup has CHUNK lanes or more.

shared uint found_rows, found_tokens;

// A bit for each of SHORTEST rows in which a chunk of a long run begins, or with `of_runs` the run itself.
uint chunks_from(uint begin, bool of_runs) {
    uint row = begin + gl_LocalInvocationID.x;
    if (gl_LocalInvocationID.x == 0)
        found_rows = 0;
    barrier();
    if (gl_LocalInvocationID.x < SHORTEST && row < p.num_rows) {
        Run run = (p.runs + row).v;
        uint offset = run.offset & ~LAST_OF_RUN;
        bool begins = run.state_index != NO_STATE && (of_runs ? offset : offset % CHUNK) == 0;
        if (begins && is_long(p.runs, row - offset, p.num_rows))
            atomicOr(found_rows, 1u << gl_LocalInvocationID.x);
    }
    barrier();
    return found_rows;
}

// Tokens of the chunk that begins at a row, and whether it is the run's last.
uint chunk_tokens(uint row, out bool is_last) {
    uint at = gl_LocalInvocationID.x;
    if (at == 0)
        found_tokens = CHUNK + 1;
    barrier();
    if (at < CHUNK && row + at < p.num_rows && ((p.runs + row + at).v.offset & LAST_OF_RUN) != 0)
        atomicMin(found_tokens, at + 1);
    barrier();
    is_last = found_tokens <= CHUNK;
    return min(found_tokens, CHUNK);
}

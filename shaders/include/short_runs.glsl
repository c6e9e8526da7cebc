// Which runs of tokens a workgroup takes that goes token by token, found by all lanes at once. Behind ROWS and CHUNKED, which are the
// kernel's constants, the arguments p.runs and p.num_rows, include/run.glsl and include/long_run.glsl; it has ROWS lanes or more.

shared uint found_rows;

bool takes_run(uint row) {
    Run run = (p.runs + row).v;
    if (run.state_index == NO_STATE || (run.offset & ~LAST_OF_RUN) != 0)
        return false;
    return !CHUNKED || !is_long(p.runs, row, p.num_rows);
}

// A bit for each of ROWS rows from `begin` on in which such a run begins.
uint runs_from(uint begin) {
    if (ROWS == 1)
        return takes_run(begin) ? 1 : 0;
    uint row = begin + gl_LocalInvocationID.x;
    if (gl_LocalInvocationID.x == 0)
        found_rows = 0;
    barrier();
    if (gl_LocalInvocationID.x < ROWS && row < p.num_rows && takes_run(row))
        atomicOr(found_rows, 1u << gl_LocalInvocationID.x);
    barrier();
    return found_rows;
}

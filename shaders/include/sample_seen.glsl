// How often a row's sequence has a token: what is counted of it, and what is proposed to it before the row's own choice.
// Needs LANES of at least MOST_PROPOSED.

const uint MOST_PROPOSED = 15;

shared uint proposed_tokens[MOST_PROPOSED];
uint num_proposed;

// The whole workgroup has to call it before `seen`.
void gather_proposed(Rows rows, uint row, uint proposal) {
    num_proposed = min(proposal, MOST_PROPOSED);
    uint lane = gl_LocalInvocationID.x;
    if (lane < num_proposed) proposed_tokens[lane] = rows.rows[row - lane].token;
    barrier();
}

uint seen(uint count, uint id) {
    for (uint i = 0; i < num_proposed; ++i) count += uint(proposed_tokens[i] == id);
    return count;
}

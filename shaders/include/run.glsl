// Where a token of a step stands among those that its sequence has in the step, which follow each other.
const uint LAST_OF_RUN = 0x80000000u;

struct Run {
    uint state_index; // of the sequence; NO_STATE where the row has no token
    uint offset; // tokens of the run before it, and LAST_OF_RUN
    uint source; // row of the state before the run
    uint kept; // row that the state behind the token is copied to, or NO_STATE; where `source` is `state_index`, not among a run's first tokens but the last
};
const uint NO_STATE = 0xFFFFFFFFu;

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Runs { Run v; };

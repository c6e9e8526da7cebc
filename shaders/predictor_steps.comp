#version 460
// Where each sequence's prediction goes on: behind the last token that the step has sampled and that follows right proposals, or
// behind the one that was predicted before. A lane owns one sequence; there is one workgroup.
#extension GL_GOOGLE_include_directive : require
#include "include/pointers.glsl"

const uint LANES = 64;
layout(local_size_x = LANES) in;
layout(constant_id = 0) const uint RESULT_WORDS = 44; // of a result, which begins with its token
layout(constant_id = 1) const uint ROW_WORDS = 18; // of a row to sample
layout(constant_id = 2) const uint POSITION_WORD = 1; // where that has its position

const uint NO_SLOT = 0xffffffffu;

struct Step {
    uint first_row; // of those that the sequence has among the sampled ones
    uint num_rows; // one more than were proposed; 0 = padding
};

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Places { uint v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Steps { Step v; };

layout(push_constant, scalar) uniform P {
    Steps steps; // (sequences)
    Ints token_ids; // (tokens) of the step
    Uints token_positions; // (tokens)
    Uints logit_rows; // (rows): tokens
    Uints sampled; // (rows) results
    Uints predicted; // (rows) results; behind the first of them (sequences)
    Uints block_table; // (sequences, max_blocks)
    Places from_rows; // (sequences): rows of the stream
    Places next_ids; // (sequences)
    Places positions; // (sequences)
    Places context_len; // (sequences)
    Places slots; // (sequences)
    Places sample_rows; // (sequences) rows to sample
    uint max_blocks;
    uint block_size;
    uint is_first;
    uint num_sequences;
} p;

void main() {
    uint own = gl_LocalInvocationID.x;
    if (own >= p.num_sequences)
        return;
    Step step = (p.steps + own).v;
    if (step.num_rows == 0) {
        (p.slots + own).v = NO_SLOT;
        (p.from_rows + own).v = 0;
        (p.next_ids + own).v = 0;
        (p.positions + own).v = 0;
        (p.context_len + own).v = 1;
        return;
    }
    uint row = own, from = own, position;
    if (p.is_first != 0) {
        row = step.first_row;
        uint last = row + step.num_rows - 1;
        while (row < last && int((p.sampled + row * RESULT_WORDS).v) == (p.token_ids + (p.logit_rows + (row + 1)).v).v)
            ++row;
        from = (p.logit_rows + row).v;
        position = (p.token_positions + from).v + 1;
    } else {
        position = (p.positions + own).v + 1;
    }
    uint block = (p.block_table + (own * p.max_blocks + position / p.block_size)).v;
    (p.from_rows + own).v = from;
    (p.next_ids + own).v = (p.predicted + row * RESULT_WORDS).v;
    (p.positions + own).v = position;
    (p.context_len + own).v = position + 1;
    (p.slots + own).v = block * p.block_size + position % p.block_size;
    (p.sample_rows + (own * ROW_WORDS + POSITION_WORD)).v = position + 2;
}

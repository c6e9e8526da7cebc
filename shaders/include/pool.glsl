// What a step has of the sequences whose hidden states become embeddings; the host writes it, ops/pool_parts.py.

const uint NO_STATE = 0xffffffffu;
const uint BEGINS = 1; // nothing was added up before
const uint ENDS = 2; // all of the sequence is, with this part
const uint NORMALISES = 4;

struct Pool {
    uint state_index; // of its sequence; NO_STATE = padding
    uint row; // its first among the step's tokens
    uint num_rows;
    uint flags;
    uint dimensions; // of the embedding: the first columns
    float scale; // 1 / rows of all its parts
};

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Pools { Pool v; };

// What the sampling kernels share: the arrays they work on, and logits as integers that order like the logits do.
//
// A NaN and -inf count as the smallest finite number, +inf as the largest, -0 as 0. Keys are u32, larger for larger
// logits, never 0. A token that its row's mask forbids is passed over, as if the vocabulary did not have it.

struct Row {  // one row to sample, written by the host
    uint state_index;  // of its sequence; NO_STATE = the row is padding
    uint position;  // index of the new token in its sequence
    uint seed_low;
    uint seed_high;
    float inverse_temperature;  // 0 = greedy
    uint top_k;  // 0 = off
    uint top_p;  // fixed point, 2^32 = 1; 0 = off
    float log_min_p;  // natural logarithm; the smallest finite number = off
    float repetition;
    float inverse_repetition;
    float presence;
    float frequency;
    int top_logprobs;  // -1 = no log-probabilities at all
    uint penalised;  // 0 = no penalties; COUNTS = those above apply, and the choice is counted; else it is not
    uint mask;  // its row of the masks; NO_MASK = every token may come
    uint biases;  // its first among all rows' biases; NO_BIASES = it has none
    uint token;  // that was proposed to come before the row's own
    uint proposal;  // how many of the sequence's were, each the token of a row: of this one and those right before it
};

struct Part {  // what one workgroup found in its chunk of a row
    uint raw_key;  // the model's own logits
    uint raw_id;
    float raw_sum;  // of exp(logit - largest logit of the chunk)
    uint key;  // logits after penalties
    uint id;
    uint draw_key;  // logits with Gumbel noise; 0 = nothing to choose from
    uint draw_id;
    uint reserved;
};

struct Bounds {  // what is known of a row after its first pass
    uint max_key;
    uint max_id;
    uint threshold;  // tokens with smaller keys are out
    uint reserved;
};

const uint MAX_TOP = 20;

struct Result {
    uint token;
    float logprob;
    uint num_top;
    uint reserved;
    uint top_ids[MAX_TOP];
    float top_logprobs[MAX_TOP];
};

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Logits { float logits[]; };  // (rows, vocab)
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Rows { Row rows[]; };  // (rows)
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Counts { uint counts[]; };  // (states, vocab)
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Parts { Part parts[]; };  // (rows, chunks)
layout(buffer_reference, std430, buffer_reference_align = 4) buffer RowBounds { Bounds bounds[]; };  // (rows)
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer LastToken { uint tokens[]; };  // (states)
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Results { Result results[]; };  // (rows)

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Masks { uint words[]; };  // (masks, vocab / 32)

const uint NO_STATE = 0xffffffffu;
const uint NO_MASK = 0xffffffffu;
const uint NO_BIASES = 0xffffffffu;
const uint NO_TOKEN = 0xffffffffu;
const uint COUNTS = 1;  // of `penalised`
const uint IN_PROMPT = 0x80000000u;  // of a count: the token occurs in the prompt; the other bits count it in the output

// By the bits, because a driver may assume that there are no infinities and NaNs.
float clean(float logit) {
    uint bits = floatBitsToUint(logit);
    uint magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x7f800000u) return logit;
    return uintBitsToFloat(bits == 0x7f800000u ? 0x7f7fffffu : 0xff7fffffu);
}

uint key_of(float value) {
    uint bits = floatBitsToUint(value);
    if (bits == 0x80000000u) bits = 0;
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float value_of(uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// The logit after penalties: repetition counts prompt and output, the others the output alone.
float penalised(float logit, Row row, uint count) {
    precise float value = clean(logit);
    if (count != 0) value *= value > 0.0 ? row.inverse_repetition : row.repetition;
    uint in_output = count & ~IN_PROMPT;
    if (in_output != 0) {
        precise float frequency = row.frequency * float(in_output);
        precise float sum = frequency + row.presence;
        value -= sum;
    }
    return clean(value);
}

// Whether a row's mask lets a token come: a bit for each token, the lowest of a word first.
bool is_allowed(Masks masks, uint mask, uint vocab, uint id) {
    return mask == NO_MASK || (masks.words[mask * ((vocab + 31) / 32) + id / 32] >> (id % 32) & 1) != 0;
}

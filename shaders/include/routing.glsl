// The choice of a token's experts, and the sort of few tokens' pairs, for kernels with route.comp's constants and push block `p`.

const uint GROUP_SIZE = EXPERTS / GROUPS;
const uint TAKEN = 0, NOT_A_NUMBER = 1;

shared uint experts[ROOM]; // of pairs
shared uint users[SORTS ? EXPERTS : 1]; // of an expert: tokens, a bit each
shared uint before[SORTS ? EXPERTS : 1]; // an expert: pairs of lower ones, and above 16 bits their tiles
shared uint num_made; // tiles

float scores[PER_LANE]; // what weights are made of
float choices[PER_LANE]; // what experts are chosen by
uint keys[PER_LANE];
float largest; // of the logits

uint expert_of(uint i) {
    return gl_SubgroupInvocationID + i * gl_SubgroupSize;
}

// Orders floats as unsigned integers, above TAKEN and NOT_A_NUMBER. Bits are compared: comparisons of NaNs are a driver's.
uint key_of(float value) {
    const uint bits = floatBitsToUint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return NOT_A_NUMBER;
    }
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float value_of(uint key) {
    return key <= NOT_A_NUMBER ? uintBitsToFloat(0xff800000u) : uintBitsToFloat(key >= 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The largest key of experts from one to before another, and the lowest number that has it.
uint best_key(uint begin, uint end, out uint expert) {
    uint key = TAKEN;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        const uint own = expert_of(i);
        if (own >= begin && own < end) {
            key = max(key, keys[i]);
        }
    }
    key = subgroupMax(key);
    uint first = EXPERTS - 1;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        const uint own = expert_of(i);
        if (own >= begin && own < end && keys[i] == key) {
            first = min(first, own);
        }
    }
    expert = subgroupMin(first);
    return key;
}

void set_key(uint expert, uint key) {
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        if (expert_of(i) == expert) {
            keys[i] = key;
        }
    }
}

void read_scores(uint token) {
    largest = uintBitsToFloat(0xff800000u);
    const float nothing = largest;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        scores[i] = expert_of(i) < EXPERTS ? (p.logits + (token * p.stride + expert_of(i))).v : nothing;
        largest = max(largest, scores[i]);
    }
    largest = subgroupMax(largest);
    float sum = 0;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        if (SIGMOID) {
            scores[i] = 1 / (1 + exp(min(-scores[i], 80.0)));
        } else {
            choices[i] = scores[i]; // in the order of what becomes of them
            scores[i] = expert_of(i) < EXPERTS ? exp(scores[i] - largest) : 0;
            sum += scores[i];
        }
    }
    if (!SIGMOID && (!NORMALISE || HAS_BIAS)) {
        sum = subgroupAdd(sum);
        [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
            scores[i] /= sum;
        }
    }
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        if (SIGMOID || HAS_BIAS) {
            choices[i] = scores[i];
        }
        if (HAS_BIAS && expert_of(i) < EXPERTS) {
            choices[i] += (p.bias + expert_of(i)).v;
        }
        keys[i] = expert_of(i) < EXPERTS ? key_of(choices[i]) : TAKEN;
    }
}

// The score that experts have a key by: a logit stands for its part of the softmax, up to a factor.
float score_of(uint key) {
    const float value = value_of(key);
    return SIGMOID || HAS_BIAS || BY_BEST ? value : exp(min(value - largest, 0.0));
}

// Takes all experts away that are not in the groups whose two best scores add up to most, or whose best one is largest.
void keep_groups() {
    uint sums[GROUPS];
    [[unroll]] for (uint g = 0; g < GROUPS; g++) {
        uint first, second;
        const uint key = best_key(g * GROUP_SIZE, (g + 1) * GROUP_SIZE, first);
        set_key(first, TAKEN);
        const uint next = best_key(g * GROUP_SIZE, (g + 1) * GROUP_SIZE, second);
        set_key(first, key);
        sums[g] = key_of(score_of(key) + (GROUP_SIZE > 1 && !BY_BEST ? score_of(next) : 0.0));
    }
    [[unroll]] for (uint g = 0; g < GROUPS; g++) {
        uint better = 0;
        [[unroll]] for (uint other = 0; other < GROUPS; other++) {
            better += uint(sums[other] > sums[g] || (sums[other] == sums[g] && other < g));
        }
        [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
            if (better >= GROUPS_KEPT && expert_of(i) / GROUP_SIZE == g) {
                keys[i] = TAKEN;
            }
        }
    }
}

void route(uint token) {
    read_scores(token);
    if (GROUPS > 1) {
        keep_groups();
    }
    float weights[K];
    float own_scales[K];
    float sum = 0;
    [[unroll]] for (uint slot = 0; slot < K; slot++) {
        uint expert;
        best_key(0, EXPERTS, expert);
        set_key(expert, TAKEN);
        float own = 0;
        [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
            own += expert_of(i) == expert ? scores[i] : 0.0;
        }
        weights[slot] = subgroupShuffle(own, expert % gl_SubgroupSize);
        sum += weights[slot];
        own_scales[slot] = HAS_SCALES ? (p.scales + expert).v : 1.0;
        if (subgroupElect()) {
            p.chosen.v[token * K + slot] = expert;
            if (SORTS) {
                experts[token * K + slot] = expert;
                atomicOr(users[expert], 1u << token);
            }
        }
    }
    const float factor = NORMALISE ? p.scale / (SIGMOID ? sum + 1e-20 : sum) : p.scale;
    [[unroll]] for (uint slot = 0; slot < K; slot++) {
        if (subgroupElect()) {
            (p.weights + (token * K + slot)).v = weights[slot] * factor * own_scales[slot];
        }
    }
}

uint tiles_of(uint pairs) {
    return (pairs + TILE - 1) / TILE;
}

// Adds up the pairs and tiles of lower experts, in one subgroup.
void add_up() {
    uint sum = 0;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        const uint expert = expert_of(i);
        const uint pairs = expert < EXPERTS ? bitCount(users[expert]) : 0;
        const uint both = pairs | tiles_of(pairs) << 16;
        const uint lower = sum + subgroupExclusiveAdd(both);
        if (expert < EXPERTS) {
            before[expert] = lower;
        }
        sum += subgroupAdd(both);
    }
    if (subgroupElect()) {
        num_made = sum >> 16;
    }
}

// Pairs lie behind those of lower experts, and of their own behind those of lower tokens.
void sort_pairs() {
    barrier();
    if (gl_SubgroupID == 0) {
        add_up();
    }
    barrier();
    for (uint pair = gl_LocalInvocationID.x; pair < p.tokens * K; pair += WORKGROUP) {
        const uint expert = experts[pair];
        const uint lower = bitCount(users[expert] & ((1u << pair / K) - 1));
        p.order.v[(before[expert] & 0xffffu) + lower] = pair;
    }
    for (uint expert = gl_LocalInvocationID.x; expert < EXPERTS; expert += WORKGROUP) {
        const uint pairs = bitCount(users[expert]);
        for (uint tile = 0; tile < tiles_of(pairs); tile++) {
            const uint first = tile * TILE;
            p.tiles.v[(before[expert] >> 16) + tile] = Tile(expert, (before[expert] & 0xffffu) + first, min(TILE, pairs - first));
        }
    }
    for (uint i = num_made + gl_LocalInvocationID.x; i < p.num_tiles; i += WORKGROUP) {
        p.tiles.v[i] = Tile(0, 0, 0);
    }
}

// Before tokens are routed by a workgroup that SORTS.
void forget_users() {
    for (uint expert = gl_LocalInvocationID.x; expert < EXPERTS; expert += WORKGROUP) {
        users[expert] = 0;
    }
    barrier();
}

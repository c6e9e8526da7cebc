// exp, log and random numbers made of additions, multiplications and integer operations alone. Vulkan rounds those the
// same way everywhere, so that a draw does not depend on the device; its own exp, log and division are looser.
// The polynomials are least-squares fits at Chebyshev nodes; relative errors stay below 1e-7.

const float LN2_HIGH = 0.693145751953125;  // 16 bits, so that its multiples are exact
const float LN2_LOW = 1.42860682030941723e-6;

float exp_of(float x) {  // x <= 0; below -87 the result is 0
    if (!(x > -87.0)) return 0.0;
    precise float turns = x * 1.44269504088896341 - 0.5;
    int n = int(turns);  // towards 0, which rounds x / ln 2 to the nearest
    precise float r = x - float(n) * LN2_HIGH;
    r = r - float(n) * LN2_LOW;
    precise float q = r * 0.0013933823211118579 + 0.00836329534649849;
    q = q * r + 0.041666463017463684;
    q = q * r + 0.16666576266288757;
    q = q * r + 0.5;
    precise float y = r * r * q;
    y = y + r;
    y = y + 1.0;
    return uintBitsToFloat(floatBitsToUint(y) + (uint(n) << 23));
}

float log_of_one_plus(float f) {  // -0.2929 <= f <= 0.4143
    precise float q = f * -0.08099693804979324 + 0.1271192878484726;
    q = q * f - 0.12972594797611237;
    q = q * f + 0.1420222371816635;
    q = q * f - 0.1664222776889801;
    q = q * f + 0.20001466572284698;
    q = q * f - 0.25000298023223877;
    q = q * f + 0.333333283662796;
    precise float square = f * f;
    precise float tail = square * (f * q);
    tail = tail - 0.5 * square;
    tail = f + tail;
    return tail;
}

float log_of(float x) {  // a normal positive number
    uint bits = floatBitsToUint(x);
    int e = int(bits >> 23) - 127;
    float m = uintBitsToFloat((bits & 0x7fffffu) | 0x3f800000u);
    if (m > 1.4142135) {
        m *= 0.5;
        ++e;
    }
    precise float low = log_of_one_plus(m - 1.0) + float(e) * LN2_LOW;
    precise float sum = float(e) * LN2_HIGH + low;
    return sum;
}

// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The first two of its four words.
uvec2 philox(uvec4 counter, uvec2 key) {
    for (uint i = 0; i < 10; ++i) {
        uint high_0, low_0, high_1, low_1;
        umulExtended(0xD2511F53u, counter.x, high_0, low_0);
        umulExtended(0xCD9E8D57u, counter.z, high_1, low_1);
        counter = uvec4(high_1 ^ counter.y ^ key.x, low_1, high_0 ^ counter.w ^ key.y, low_0);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter.xy;
}

// random / 2^64, cut to 24 significant bits: in [2^-64, 1), and small numbers are as fine as large ones.
float fraction_of(uvec2 random) {
    bool is_small = random.x == 0;
    uint word = is_small ? max(random.y, 1u) : random.x;
    uint msb = uint(findMSB(word));
    uint top = word << (31 - msb);
    if (!is_small && msb < 31) top |= random.y >> (msb + 1);
    uint exponent = msb + (is_small ? 63u : 95u);
    return uintBitsToFloat((exponent << 23) | ((top >> 8) & 0x7fffffu));
}

// A number of Gumbel's distribution, -ln(-ln(1 - u)).
float gumbel(uvec2 random) {
    float u = fraction_of(random);
    float exponential = u < 0.25 ? -log_of_one_plus(-u) : -log_of(1.0 - u);
    return -log_of(exponential);
}

// Attention of one core: softmax(q · Kᵀ) · V of its rows of an item, chunk after chunk, with the softmax's state in f32.
//
// The cores of a team get the same buffers. Strip s of an item is that of the core with the place s % TEAM, which keeps
// it as its strip s / TEAM; so results that are joined, one strip of each core after the other, are in order.
//
// Everything is transposed, Sᵀ = K · Qᵀ and Oᵀ = Vᵀ · Pᵀ, so that lane i of every vector belongs to row i % N: maxima,
// sums and factors of rows are plain vectors, and no result is ever shuffled to become an operand.
//
// Layouts in a buffer, all bf16:
//   queries  (strips, head_dim, N rows), rotated and scaled
//   keys     (KEYS / M, head_dim / 8, M keys, 8 dims), then
//   values   (KEYS / 8, head_dim / M, M dims, 8 keys)
// Results are f32, (strips, head_dim, N rows).
//
// The running maximum is a whole power of two, so that a change of it scales sums and results exactly; it needs no more
// than the right size, because it cancels. Scores have to stay within ±8192. Values of keys that no row sees have to be
// finite.
//
// Built with -DHEAD_DIM and -DSTATE_BYTES; not yet compiled for hardware.
#include "functions.h"

namespace {

using Product = aie::mmul<M * TILES_OF_PRODUCT, DEPTH, N, bfloat16, bfloat16, accauto>;
constexpr unsigned TILE = M * DEPTH;  // elements of a tile of keys or of values

// A product waits for the one before it on the same accumulator, so so many accumulators are in flight: those of
// neighbouring tiles, and of parts of the depth where a chunk has fewer tiles of keys.
constexpr unsigned IN_FLIGHT = 4;
constexpr unsigned KEY_PRODUCTS = KEY_TILES / TILES_OF_PRODUCT, DIM_PRODUCTS = DIM_TILES / TILES_OF_PRODUCT;
constexpr unsigned SCORE_PRODUCTS = KEY_PRODUCTS < IN_FLIGHT ? KEY_PRODUCTS : IN_FLIGHT;
constexpr unsigned SCORE_PARTS = IN_FLIGHT / SCORE_PRODUCTS;
static_assert(KEY_TILES % TILES_OF_PRODUCT == 0 && KEY_PRODUCTS % SCORE_PRODUCTS == 0 && DIM_STEPS % SCORE_PARTS == 0);
static_assert(DIM_TILES % TILES_OF_PRODUCT == 0 && DIM_PRODUCTS % IN_FLIGHT == 0);

constexpr float MASKED = -20000.0f;  // below every score
constexpr float LOWEST = -29952.0f;  // the exponent before the first key

struct alignas(64) State {
  bfloat16 q[ROWS * HEAD_DIM];        // (strips, head_dim, N)
  float results[ROWS * HEAD_DIM];     // (strips, head_dim, N), not yet divided by the sums
  float sums[STRIPS * LANES];         // (strips, M, N): a row's sum is that of its M lanes
  bfloat16 exponents[STRIPS * LANES];  // (strips, M, N): of the power of two that weights are relative to
  int32_t first[STRIPS * LANES];       // (strips, M, N): the keys that a row sees
  int32_t last[STRIPS * LANES];
  Header item;
  int32_t place;   // of the core in its team
  int32_t strips;  // of the core, in use
  int32_t next_key;
  int32_t next_strip;
  int32_t next_queries;  // strip of the item that the next buffer of queries begins with
};
static_assert(sizeof(State) == STATE_BYTES, "the host reserves what the state needs: unicorn_async/npu/tile_budget.py");

alignas(64) constexpr int32_t KEY_OF_LANE[32] = {0 / N,  1 / N,  2 / N,  3 / N,  4 / N,  5 / N,  6 / N,  7 / N,
                                                 8 / N,  9 / N,  10 / N, 11 / N, 12 / N, 13 / N, 14 / N, 15 / N,
                                                 16 / N, 17 / N, 18 / N, 19 / N, 20 / N, 21 / N, 22 / N, 23 / N,
                                                 24 / N, 25 / N, 26 / N, 27 / N, 28 / N, 29 / N, 30 / N, 31 / N};

struct Scores {
  F32 values[KEY_TILES];
  aie::mask<LANES> seen[KEY_TILES];
  Bf16 top;  // the rows' maxima
};

// The operand of tiles of keys that are neighbours, at one step of the depth.
inline auto key_operand(const bfloat16 *__restrict tile) {
  if constexpr (TILES_OF_PRODUCT == 2)
    return aie::concat(aie::load_v<TILE>(tile), aie::load_v<TILE>(tile + DIM_STEPS * TILE));
  else
    return aie::load_v<TILE>(tile);
}

// Multiplies neighbouring tiles of keys with a strip's queries.
inline void multiply(const bfloat16 *__restrict keys, const bfloat16 *__restrict q, F32 *__restrict scores) {
  Product product[SCORE_PARTS][SCORE_PRODUCTS];
  const auto operand = [keys](unsigned number, unsigned step) {
    return key_operand(keys + (number * TILES_OF_PRODUCT * DIM_STEPS + step) * TILE);
  };
  UNROLLED
  for (unsigned part = 0; part < SCORE_PARTS; ++part) {
    const auto query = aie::load_v<Product::size_B>(q + part * Product::size_B);
    UNROLLED
    for (unsigned i = 0; i < SCORE_PRODUCTS; ++i) product[part][i].mul(operand(i, part), query);
  }
  ROLLED
  for (unsigned step = SCORE_PARTS; step < DIM_STEPS; step += SCORE_PARTS) {
    UNROLLED
    for (unsigned part = 0; part < SCORE_PARTS; ++part) {
      const auto query = aie::load_v<Product::size_B>(q + (step + part) * Product::size_B);
      UNROLLED
      for (unsigned i = 0; i < SCORE_PRODUCTS; ++i) product[part][i].mac(operand(i, step + part), query);
    }
  }
  UNROLLED
  for (unsigned i = 0; i < SCORE_PRODUCTS; ++i) {
    auto sum = product[0][i].template to_vector<float>();
    UNROLLED
    for (unsigned part = 1; part < SCORE_PARTS; ++part)
      sum = aie::add(sum, product[part][i].template to_vector<float>());
    UNROLLED
    for (unsigned tile = 0; tile < TILES_OF_PRODUCT; ++tile)
      scores[i * TILES_OF_PRODUCT + tile] = sum.template extract<LANES>(tile);
  }
}

inline void score(const State &state, unsigned strip, const bfloat16 *__restrict keys, Scores &__restrict out) {
  const bfloat16 *__restrict q = state.q + strip * HEAD_DIM * N;
  const auto first = aie::load_v<LANES>(state.first + strip * LANES);
  const auto last = aie::load_v<LANES>(state.last + strip * LANES);
  const auto key_of_lane = aie::load_v<LANES>(KEY_OF_LANE);
  ROLLED
  for (unsigned tile = 0; tile < KEY_TILES; tile += SCORE_PRODUCTS * TILES_OF_PRODUCT)
    multiply(keys + tile * DIM_STEPS * TILE, q, out.values + tile);
  out.top = all_bf16(MASKED);
  ROLLED
  for (unsigned tile = 0; tile < KEY_TILES; ++tile) {
    F32 scores = out.values[tile];
    if (state.item.is_capped) scores = soft_capped(scores, state.item.soft_cap);
    const auto key = aie::add(key_of_lane, aie::broadcast<int32_t, LANES>(state.next_key + int32_t(tile * M)));
    out.seen[tile] = aie::ge(key, first) & aie::le(key, last);
    out.values[tile] = aie::select(all(MASKED), scores, out.seen[tile]);
    out.top = aie::max(out.top, to_bf16(out.values[tile]));
  }
  ROLLED
  for (unsigned shift = N; shift < LANES; shift *= 2)
    out.top = aie::max(out.top, aie::shuffle_down_rotate(out.top, shift));
}

// Raises the strip's exponents to what the scores need, and brings sums and results along.
inline F32 raise(State &state, unsigned strip, const Bf16 &top) {
  bfloat16 *place = state.exponents + strip * LANES;
  const Bf16 old = aie::load_v<LANES>(place);
  const Bf16 next = aie::max(old, exponent_near(top));
  if (!aie::lt(old, next).empty()) {
    const Bf16 factor = power_of_two(to_bf16(aie::sub(to_f32(old), to_f32(next))));
    float *__restrict results = state.results + strip * HEAD_DIM * N, *__restrict sums = state.sums + strip * LANES;
    ROLLED
    for (unsigned i = 0; i < HEAD_DIM * N; i += LANES)
      aie::store_v(results + i, times(F32(aie::load_v<LANES>(results + i)), factor));
    aie::store_v(sums, times(F32(aie::load_v<LANES>(sums)), factor));
    aie::store_v(place, next);
  }
  return times_ln2(next);
}

inline void accumulate(State &state, unsigned strip, const bfloat16 *__restrict values, const Scores &scores,
                       const F32 &maximum) {
  Bf16 weights[KEY_TILES];
  float *__restrict sums = state.sums + strip * LANES;
  F32 sum = aie::load_v<LANES>(sums);
  ROLLED
  for (unsigned tile = 0; tile < KEY_TILES; ++tile) {
    const Bf16 weight = exponential(aie::sub(scores.values[tile], maximum));
    weights[tile] = aie::select(all_bf16(0.0f), weight, scores.seen[tile]);
    sum = aie::add(sum, to_f32(weights[tile]));
  }
  aie::store_v(sums, sum);
  float *__restrict results = state.results + strip * HEAD_DIM * N;
  ROLLED
  for (unsigned first = 0; first < DIM_PRODUCTS; first += IN_FLIGHT, results += IN_FLIGHT * Product::size_C) {
    Product product[IN_FLIGHT];
    UNROLLED
    for (unsigned i = 0; i < IN_FLIGHT; ++i)
      product[i] = Product(aie::load_v<Product::size_C>(results + i * Product::size_C));
    ROLLED
    for (unsigned step = 0; step < KEY_STEPS; ++step) {
      const bfloat16 *__restrict tiles = values + (step * DIM_PRODUCTS + first) * Product::size_A;
      const auto weight = aie::concat(weights[2 * step], weights[2 * step + 1]);
      UNROLLED
      for (unsigned i = 0; i < IN_FLIGHT; ++i)
        product[i].mac(aie::load_v<Product::size_A>(tiles + i * Product::size_A), weight);
    }
    UNROLLED
    for (unsigned i = 0; i < IN_FLIGHT; ++i)
      aie::store_v(results + i * Product::size_C, product[i].template to_vector<float>());
  }
}

}  // namespace

extern "C" {

// Takes an item's parameters from its first buffer, for the core with this place in its team. counts becomes (buffers of
// queries, chunks, strips to send), for the core's loops; all cores of a team send as many strips, empty ones too.
void attention_begin(const int32_t *buffer, int32_t *memory, int32_t *counts, int32_t place) {
  State &state = *reinterpret_cast<State *>(memory);
  const Parameters &given = *reinterpret_cast<const Parameters *>(buffer);
  int32_t *header = reinterpret_cast<int32_t *>(&state.item);
  ROLLED
  for (unsigned i = 0; i < sizeof(Header) / sizeof(int32_t); ++i) header[i] = buffer[i];
  const unsigned strips = unsigned(state.item.strips);
  state.place = place;
  state.strips = int32_t((strips + TEAM - 1 - unsigned(place)) / TEAM);
  state.next_key = state.item.base;
  state.next_strip = 0;
  state.next_queries = 0;
  ROLLED
  for (unsigned strip = 0; strip < STRIPS; ++strip) {
    const unsigned theirs = (strip * TEAM + unsigned(place)) * LANES, own = strip * LANES;
    aie::store_v(state.first + own, aie::load_v<LANES>(given.first + theirs));
    aie::store_v(state.last + own, aie::load_v<LANES>(given.last + theirs));
    aie::store_v(state.sums + own, all(0.0f));
    aie::store_v(state.exponents + own, all_bf16(LOWEST));
  }
  ROLLED
  for (unsigned i = 0; i < ROWS * HEAD_DIM; i += LANES) aie::store_v(state.results + i, all(0.0f));
  counts[0] = int32_t((strips + STRIPS - 1) / STRIPS);
  counts[1] = state.item.chunks;
  counts[2] = int32_t((strips + TEAM - 1) / TEAM);
}

// Takes the core's queries from one of the buffers after the first.
void attention_queries(const int32_t *buffer, int32_t *memory) {
  State &state = *reinterpret_cast<State *>(memory);
  bfloat16 *__restrict own = state.q + unsigned(state.next_queries) / TEAM * HEAD_DIM * N;
  const bfloat16 *__restrict q = reinterpret_cast<const bfloat16 *>(buffer) + unsigned(state.place) * HEAD_DIM * N;
  ROLLED
  for (unsigned strip = 0; strip < STRIPS; strip += TEAM) {
    ROLLED
    for (unsigned i = 0; i < HEAD_DIM * N; i += 32) aie::store_v(own + i, aie::load_v<32>(q + i));
    own += HEAD_DIM * N;
    q += TEAM * HEAD_DIM * N;
  }
  state.next_queries += int32_t(STRIPS);
}

// Attends to one chunk of keys and values.
void attention_chunk(const int32_t *buffer, int32_t *memory) {
  aie::set_rounding(aie::rounding_mode::conv_even);  // the default rounds down, which biases the result
  State &state = *reinterpret_cast<State *>(memory);
  const bfloat16 *keys = reinterpret_cast<const bfloat16 *>(buffer), *values = keys + KEYS * HEAD_DIM;
  ROLLED
  for (unsigned strip = 0; strip < unsigned(state.strips); ++strip) {
    Scores scores;
    score(state, strip, keys, scores);
    accumulate(state, strip, values, scores, raise(state, strip, scores.top));
  }
  state.next_key += int32_t(KEYS);
}

// Writes the core's next strip's result; a row that sees no key gets zeros.
void attention_strip(int32_t *memory, float *out) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  State &state = *reinterpret_cast<State *>(memory);
  const unsigned strip = unsigned(state.next_strip++);
  F32 sum = aie::load_v<LANES>(state.sums + strip * LANES);
  ROLLED
  for (unsigned shift = N; shift < LANES; shift *= 2) sum = aie::add(sum, aie::shuffle_down_rotate(sum, shift));
  const F32 share = reciprocal(aie::add(sum, all(1e-30f)));
  const float *results = state.results + strip * HEAD_DIM * N;
  ROLLED
  for (unsigned i = 0; i < HEAD_DIM * N; i += LANES)
    aie::store_v(out + i, times(F32(aie::load_v<LANES>(results + i)), share));
}

}  // extern "C"

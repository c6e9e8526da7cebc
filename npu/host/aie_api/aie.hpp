// Stand-in for AMD's AIE API, so that g++ builds the kernels' own source and tests compare its results.
//
// It has what kernels/ uses and nothing else: vectors, accumulators, masks and the tile product, lane by lane. Like the
// chip, a conversion from f32 to bf16 rounds towards minus infinity until set_rounding says otherwise; values that
// this changes are counted, because kernels should have none. What differs: the chip's product units add the terms of
// one product in one go, where this adds them one after the other in f32. Operands that the API rounds to bfp16 are
// rounded to eight bits with the largest exponent of their eight, as set_rounding says, and a mantissa that would be too
// large is the largest; how the chip does the latter is a guess. Of time it counts tile products alone, as if
// each began HOST_ISSUE cycles after the one before it or later, HOST_LATENCY after the last one on its accumulator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifndef HOST_ISSUE
#define HOST_ISSUE 2  // both operands are 64 bytes, of which a core loads as many in a cycle
#endif
#ifndef HOST_LATENCY
#define HOST_LATENCY 17
#endif

namespace aie {

inline thread_local uint64_t tile_products = 0, tile_cycles = 0;

enum class rounding_mode { floor, conv_even };
inline thread_local rounding_mode current_rounding = rounding_mode::floor;
inline thread_local uint64_t rounded_down = 0;
#ifdef HOST_IGNORES_SET_ROUNDING  // for tests: kernels as if they set no rounding
inline void set_rounding(rounding_mode) {}
#else
inline void set_rounding(rounding_mode mode) { current_rounding = mode; }
#endif

}  // namespace aie

struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  explicit bfloat16(float value) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    if ((word & 0x7fffffff) > 0x7f800000)
      bits = uint16_t(word >> 16 | 0x40);
    else if (aie::current_rounding == aie::rounding_mode::conv_even)
      bits = uint16_t((word + 0x7fff + (word >> 16 & 1)) >> 16);
    else {
      aie::rounded_down += (word & 0xffff) != 0;
      bits = uint16_t((word >> 16) + ((word & 0x80000000) && (word & 0xffff)));
    }
  }
  operator float() const {
    const uint32_t word = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  }
};

struct accfloat {};
struct accauto {};

namespace aie {

template <typename T, unsigned E>
struct alignas(32) vector {
  T lane[E];

  template <typename U>
  vector<U, E * sizeof(T) / sizeof(U)> cast_to() const {
    vector<U, E * sizeof(T) / sizeof(U)> out;
    std::memcpy(&out.lane, &lane, sizeof(lane));
    return out;
  }
  template <unsigned F>
  vector<T, F> extract(unsigned part) const {
    vector<T, F> out;
    std::memcpy(&out.lane, lane + part * F, sizeof(out.lane));
    return out;
  }
};

template <unsigned E>
struct mask {
  bool lane[E];

  bool empty() const {
    for (bool set : lane)
      if (set) return false;
    return true;
  }
  mask operator&(const mask &other) const {
    mask out;
    for (unsigned i = 0; i < E; ++i) out.lane[i] = lane[i] && other.lane[i];
    return out;
  }
};

template <typename Tag, unsigned E>
struct accum {
  float lane[E];

  template <typename T>
  void from_vector(const vector<T, E> &v) {
    for (unsigned i = 0; i < E; ++i) lane[i] = float(v.lane[i]);
  }
  template <typename T>
  vector<T, E> to_vector() const {
    vector<T, E> out;
    for (unsigned i = 0; i < E; ++i) out.lane[i] = T(lane[i]);
    return out;
  }
};

template <unsigned E, typename T>
vector<T, E> load_v(const T *from) {
  vector<T, E> out;
  std::memcpy(&out.lane, from, sizeof(out.lane));
  return out;
}

template <typename T, unsigned E>
void store_v(T *to, const vector<T, E> &v) {
  std::memcpy(to, &v.lane, sizeof(v.lane));
}

template <typename T, unsigned E>
vector<T, E> broadcast(T value) {
  vector<T, E> out;
  for (T &lane : out.lane) lane = value;
  return out;
}

template <typename T, unsigned E>
vector<T, 2 * E> concat(const vector<T, E> &low, const vector<T, E> &high) {
  vector<T, 2 * E> out;
  std::memcpy(out.lane, low.lane, sizeof(low.lane));
  std::memcpy(out.lane + E, high.lane, sizeof(high.lane));
  return out;
}

template <typename T, unsigned E>
vector<T, E> add(const vector<T, E> &a, const vector<T, E> &b) {
  vector<T, E> out;
  for (unsigned i = 0; i < E; ++i) out.lane[i] = T(a.lane[i] + b.lane[i]);
  return out;
}

template <typename T, unsigned E>
vector<T, E> sub(const vector<T, E> &a, const vector<T, E> &b) {
  vector<T, E> out;
  for (unsigned i = 0; i < E; ++i) out.lane[i] = T(a.lane[i] - b.lane[i]);
  return out;
}

template <typename T, unsigned E>
vector<T, E> max(const vector<T, E> &a, const vector<T, E> &b) {
  vector<T, E> out;
  for (unsigned i = 0; i < E; ++i) out.lane[i] = float(a.lane[i]) < float(b.lane[i]) ? b.lane[i] : a.lane[i];
  return out;
}

template <unsigned E>
accum<accfloat, E> mac(accum<accfloat, E> sum, const vector<bfloat16, E> &a, const vector<bfloat16, E> &b) {
  for (unsigned i = 0; i < E; ++i) sum.lane[i] += float(a.lane[i]) * float(b.lane[i]);
  return sum;
}

template <unsigned E>
accum<accfloat, E> mul(const vector<bfloat16, E> &a, const vector<bfloat16, E> &b) {
  return mac(accum<accfloat, E>{}, a, b);
}

template <typename T, unsigned E>
mask<E> ge(const vector<T, E> &a, const vector<T, E> &b) {
  mask<E> out;
  for (unsigned i = 0; i < E; ++i) out.lane[i] = a.lane[i] >= b.lane[i];
  return out;
}

template <typename T, unsigned E>
mask<E> le(const vector<T, E> &a, const vector<T, E> &b) {
  return ge(b, a);
}

template <typename T, unsigned E>
mask<E> lt(const vector<T, E> &a, const vector<T, E> &b) {
  mask<E> out;
  for (unsigned i = 0; i < E; ++i) out.lane[i] = float(a.lane[i]) < float(b.lane[i]);
  return out;
}

// Lanes of b where the mask is set, of a elsewhere.
template <typename T, unsigned E>
vector<T, E> select(const vector<T, E> &a, const vector<T, E> &b, const mask<E> &chosen) {
  vector<T, E> out;
  for (unsigned i = 0; i < E; ++i) out.lane[i] = chosen.lane[i] ? b.lane[i] : a.lane[i];
  return out;
}

template <typename T, unsigned E>
vector<T, E> shuffle_down_rotate(const vector<T, E> &v, unsigned by) {
  vector<T, E> out;
  for (unsigned i = 0; i < E; ++i) out.lane[i] = v.lane[(i + by) % E];
  return out;
}

// v · 2^shift as a whole number; rounded as set_rounding says, saturated.
template <typename T, unsigned E>
vector<T, E> to_fixed(const vector<bfloat16, E> &v, int shift) {
  vector<T, E> out;
  for (unsigned i = 0; i < E; ++i) {
    const float scaled = std::ldexp(float(v.lane[i]), shift);
    const float whole = current_rounding == rounding_mode::conv_even ? std::nearbyint(scaled) : std::floor(scaled);
    rounded_down += current_rounding == rounding_mode::floor && whole != scaled;
    out.lane[i] = T(std::fmin(std::fmax(whole, -32768.0f), 32767.0f));
  }
  return out;
}

// Eight values with one exponent, and eight bits for each with its sign.
inline void round_block(float *block) {
  int exponent = -126;
  for (unsigned i = 0; i < 8; ++i)
    if (block[i] != 0.0f && std::isfinite(block[i])) exponent = std::max(exponent, std::ilogb(block[i]));
  for (unsigned i = 0; i < 8; ++i) {
    const float scaled = std::ldexp(block[i], 6 - exponent);
    const float whole = current_rounding == rounding_mode::conv_even ? std::nearbyint(scaled) : std::floor(scaled);
    rounded_down += current_rounding == rounding_mode::floor && whole != scaled;
    block[i] = std::ldexp(std::min(whole, 127.0f), exponent - 6);
  }
}

// c += a · b with row-major tiles.
template <unsigned M, unsigned K, unsigned N, typename TA, typename TB, typename Tag>
class mmul {
 public:
  static constexpr unsigned size_A = M * K, size_B = K * N, size_C = M * N;

  mmul() = default;
  explicit mmul(const vector<float, size_C> &c) : c_(c) {}

  void mul(const vector<TA, size_A> &a, const vector<TB, size_B> &b) {
    c_ = broadcast<float, size_C>(0.0f);
    ready_ = 0;
    mac(a, b);
  }
  void mac(const vector<TA, size_A> &a, const vector<TB, size_B> &b) {
    tile_cycles = std::max(tile_cycles + HOST_ISSUE, ready_);
    ready_ = tile_cycles + HOST_LATENCY;
    ++tile_products;
    float left[size_A], right[size_B];
    for (unsigned i = 0; i < size_A; ++i) left[i] = float(a.lane[i]);
    for (unsigned i = 0; i < size_B; ++i) right[i] = float(b.lane[i]);
#ifdef AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16
    static_assert(M == 8 && K == 8 && N == 8, "the one shape of bfp16");
    for (unsigned m = 0; m < M; ++m) round_block(left + m * K);
    for (unsigned n = 0; n < N; ++n) {
      float column[K];
      for (unsigned k = 0; k < K; ++k) column[k] = right[k * N + n];
      round_block(column);
      for (unsigned k = 0; k < K; ++k) right[k * N + n] = column[k];
    }
#endif
    for (unsigned m = 0; m < M; ++m)
      for (unsigned k = 0; k < K; ++k)
        for (unsigned n = 0; n < N; ++n) c_.lane[m * N + n] += left[m * K + k] * right[k * N + n];
  }
  template <typename T>
  vector<T, size_C> to_vector() const {
    tile_cycles = std::max(tile_cycles, ready_);
    vector<T, size_C> out;
    for (unsigned i = 0; i < size_C; ++i) out.lane[i] = T(c_.lane[i]);
    return out;
  }

 private:
  vector<float, size_C> c_;
  uint64_t ready_ = 0;
};

}  // namespace aie

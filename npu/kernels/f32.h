// f32 arithmetic out of what the vector unit has: products of bf16 with f32 sums.
//
// Peano has no f32 vector product for AIE2. An f32 number is the sum of three bf16 numbers, so six of the nine partial
// products give all bits that an f32 result keeps. Rounding has to be to nearest, or three terms are not enough.
#pragma once

#include <aie_api/aie.hpp>

#include "tile_shape.h"

using F32 = aie::vector<float, LANES>;
using Bf16 = aie::vector<bfloat16, LANES>;
using Acc = aie::accum<accfloat, LANES>;

inline Bf16 to_bf16(const F32 &x) {
  Acc a;
  a.from_vector(x);
  return a.template to_vector<bfloat16>();
}

inline F32 to_f32(const Bf16 &x) {
  Acc a;
  a.from_vector(x);
  return a.template to_vector<float>();
}

// x = high + middle + low.
struct Split {
  Bf16 high, middle, low;

  explicit Split(const F32 &x) {
    high = to_bf16(x);
    const F32 rest = aie::sub(x, to_f32(high));
    middle = to_bf16(rest);
    low = to_bf16(aie::sub(rest, to_f32(middle)));
  }
};

// a · b, to about an f32's last bit. Not inlined, as all that has many products: program memory is 16 KB.
[[gnu::noinline]] inline F32 times(const F32 &a, const F32 &b) {
  const Split x(a), y(b);
  Acc sum = aie::mul(x.middle, y.middle);
  sum = aie::mac(sum, x.high, y.low);
  sum = aie::mac(sum, x.low, y.high);
  sum = aie::mac(sum, x.high, y.middle);
  sum = aie::mac(sum, x.middle, y.high);
  sum = aie::mac(sum, x.high, y.high);
  return sum.template to_vector<float>();
}

// a · b for b in bf16: exact where the product fits, as for powers of two.
inline F32 times(const F32 &a, const Bf16 &b) {
  const Split x(a);
  Acc sum = aie::mul(x.low, b);
  sum = aie::mac(sum, x.middle, b);
  sum = aie::mac(sum, x.high, b);
  return sum.template to_vector<float>();
}

inline F32 all(float value) { return aie::broadcast<float, LANES>(value); }
inline Bf16 all_bf16(float value) { return aie::broadcast<bfloat16, LANES>(bfloat16(value)); }

// 1 / x for 1e-30 <= x <= 1e30: the exponent's reflection as a first guess, then four steps of Newton's method.
[[gnu::noinline]] inline F32 reciprocal(const F32 &x) {
  const auto bits = aie::sub(aie::broadcast<int32_t, LANES>(0x7EF311C7), x.template cast_to<int32_t>());
  F32 guess = bits.template cast_to<float>();
  ROLLED
  for (unsigned step = 0; step < 4; ++step) guess = times(guess, aie::sub(all(2.0f), times(x, guess)));
  return guess;
}

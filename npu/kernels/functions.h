// exp and tanh out of products of bf16 with f32 sums, the same on both chips.
#pragma once

#include "f32.h"

// ln 2 as a sum of three bf16.
constexpr float LN2_HIGH = 0.69140625f, LN2_MIDDLE = 0.001739501953125f, LN2_LOW = 1.430511474609375e-6f;
constexpr float ROUNDING = 12582912.0f;  // 1.5 · 2^23: an f32 of this size is a whole number

// A whole number near x / ln 2, as bf16; the larger x, the coarser.
inline Bf16 exponent_near(const Bf16 &x) {
  const Acc scaled = aie::mul(x, all_bf16(1.4453125f));
  const F32 rounding = all(ROUNDING);
  return to_bf16(aie::sub(aie::add(scaled.template to_vector<float>(), rounding), rounding));
}

// n · ln 2.
inline F32 times_ln2(const Bf16 &n) {
  Acc product = aie::mul(n, all_bf16(LN2_LOW));
  product = aie::mac(product, n, all_bf16(LN2_MIDDLE));
  product = aie::mac(product, n, all_bf16(LN2_HIGH));
  return product.template to_vector<float>();
}

// 2^n, exactly, for whole n <= 127; what is below -126 counts as -126. n becomes the exponent's bits.
inline Bf16 power_of_two(const Bf16 &n) {
  const auto bits = aie::to_fixed<int16_t>(aie::max(n, all_bf16(-126.0f)), 7);
  return aie::add(bits, aie::broadcast<int16_t, LANES>(127 << 7)).template cast_to<bfloat16>();
}

// e^x in bf16, for x <= 80: 2^n · e^r with a small r, and e^r = 1 + r · (1 + r / 2 + r² / 6 + r³ / 24).
//
// The chip's own ways are tables of bf16 on AIE2 and a 2^x in bf16 on AIE2P; the tables' errors add up to three times
// that of the one rounding here.
inline Bf16 exponential(const F32 &x) {
  const Bf16 n = exponent_near(to_bf16(x));
  const F32 remainder = aie::sub(x, times_ln2(n));
  const Bf16 r = to_bf16(remainder), rest = to_bf16(aie::sub(remainder, to_f32(r)));
  Acc sixth, half, one;
  sixth.from_vector(all(1.0f / 6));
  half.from_vector(all(0.5f));
  one.from_vector(all(1.0f));
  Bf16 factor = aie::mac(sixth, r, all_bf16(1.0f / 24)).template to_vector<bfloat16>();
  factor = aie::mac(half, r, factor).template to_vector<bfloat16>();
  factor = aie::mac(one, r, factor).template to_vector<bfloat16>();
  const Bf16 power = aie::mac(aie::mac(one, rest, factor), r, factor).template to_vector<bfloat16>();
  return aie::mul(power, power_of_two(n)).template to_vector<bfloat16>();
}

// cap · tanh(x / cap), by tanh's continued fraction to the seventh power; its error is below 1e-4 of cap.
[[gnu::noinline]] inline F32 soft_capped(const F32 &x, float cap) {
  const float limit = 4.97f;  // from here on the fraction leaves tanh, which is 0.9999 and stays
  F32 y = times(x, reciprocal(all(cap)));
  const auto bits = y.template cast_to<int32_t>();  // floats of one sign are ordered like their bits
  const auto upper = all(limit).template cast_to<int32_t>(), lower = all(-limit).template cast_to<int32_t>();
  const auto none = aie::broadcast<int32_t, LANES>(0);
  y = aie::select(y, all(limit), aie::ge(bits, upper));
  y = aie::select(y, all(-limit), aie::lt(bits, none) & aie::ge(bits, lower));
  const F32 s = times(y, y);
  F32 above = aie::add(s, all(378.0f));
  above = aie::add(times(above, s), all(17325.0f));
  above = aie::add(times(above, s), all(135135.0f));
  F32 below = aie::add(times(s, all(28.0f)), all(3150.0f));
  below = aie::add(times(below, s), all(62370.0f));
  below = aie::add(times(below, s), all(135135.0f));
  return times(times(y, above), times(reciprocal(below), all(cap)));
}

// Counter-based random numbers: Philox-4x32-10 and the normal quantile AS241, rounded alike on every device.
//
// The counter is (pair of numbers, step | stream << 24, low and high half of the sample); the key is the seed. One
// number takes 64 bits: words 0 and 1 of its block for even indices, 2 and 3 for odd ones. Compile with floating-point
// contraction off: a fused multiply-add would round differently from the plain-torch reference.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device.h"

namespace softrank {

struct PhiloxBlock {
  uint32_t word[4];
};

SOFTRANK_ROW uint64_t low_half_times(uint64_t word, uint32_t factor) { return uint64_t(uint32_t(word)) * factor; }

// Ten rounds on counters in the low halves of 64-bit words; the high halves may hold anything, then and after.
// `times` multiplies low halves by a constant: `low_half_times`, or its like for vectors of words.
template <auto times, typename Words>
SOFTRANK_ROW void philox_rounds(uint64_t seed, Words& c0, Words& c1, Words& c2, Words& c3) {
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Words p0 = times(c0, 0xD2511F53u);
    const Words p1 = times(c2, 0xCD9E8D57u);
    c0 = (p1 >> 32) ^ c1 ^ uint64_t(k0);
    c2 = (p0 >> 32) ^ c3 ^ uint64_t(k1);
    c1 = p1;
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

SOFTRANK_ROW PhiloxBlock philox_block(uint64_t seed, uint64_t sample, uint32_t step_and_stream, uint32_t pair) {
  uint64_t c0 = pair, c1 = step_and_stream, c2 = sample, c3 = sample >> 32;
  philox_rounds<low_half_times>(seed, c0, c1, c2, c3);
  return {{uint32_t(c0), uint32_t(c1), uint32_t(c2), uint32_t(c3)}};
}

SOFTRANK_ROW void uniform_of_bits(uint32_t high, uint32_t, float& out) { out = float(high >> 8) * 0x1p-24f; }

SOFTRANK_ROW void uniform_of_bits(uint32_t high, uint32_t low, double& out) {
  out = double((uint64_t(high) << 21) | (low >> 11)) * 0x1p-53;
}

// The formulas below hold for one number and for a vector of numbers alike: V is double or a vector of doubles.
template <typename V>
SOFTRANK_ROW V polynomial(const double (&coefficients)[8], V x) {
  V value = V{} + coefficients[0];
  for (int i = 1; i < 8; ++i) value = value * x + coefficients[i];
  return value;
}

// Natural logarithm of mantissa * 2^exponent, mantissa in [sqrt(1/2), sqrt(2)], by multiplications, additions, a
// division.
template <typename V>
SOFTRANK_ROW V log_of_parts(V mantissa, V exponent) {
  const V s = (mantissa - 1.0) / (mantissa + 1.0);
  const V square = s * s;
  V series = V{} + 2.0 / 21;
  for (int k = 19; k >= 1; k -= 2) series = series * square + 2.0 / k;
  return exponent * 0.6931471805599453 + s * series;
}

SOFTRANK_ROW double portable_log(double x) {
  int exponent;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.7071067811865476) {
    mantissa = mantissa * 2;
    exponent -= 1;
  }
  return log_of_parts(mantissa, double(exponent));
}

// Square root of x in [0.5, 40] by Heron's rule, as the reference has it.
template <typename V>
SOFTRANK_ROW V portable_sqrt(V x) {
  V root = 1.0 + 0.15 * x;
  for (int i = 0; i < 5; ++i) root = 0.5 * (root + x / root);
  return root;
}

// The normal quantile at 1/2 + q in Wichura's AS241 (PPND16), for |q| <= 0.425.
template <typename V>
SOFTRANK_ROW V normal_quantile_centre(V q) {
  const double top[8] = {2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
                         13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608};
  const double bottom[8] = {5226.495278852545925,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
                            5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1.0};
  const V argument = 0.180625 - q * q;
  return q * (polynomial(top, argument) / polynomial(bottom, argument));
}

// Its magnitude for |q| > 0.425 as a function of r = sqrt(-log(1/2 - |q|)), r <= 5.
template <typename V>
SOFTRANK_ROW V normal_quantile_middle(V r) {
  const double top[8] = {7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177,
                         1.27045825245236838258,   3.64784832476320460504,   5.7694972214606914055,
                         4.6303378461565452959,    1.42343711074968357734};
  const double bottom[8] = {
      1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
      0.68976733498510000455,    1.6763848301838038494,   2.05319162663775882187,   1.0};
  return polynomial(top, r - 1.6) / polynomial(bottom, r - 1.6);
}

// The same for r > 5: one number in 36 thousand million.
SOFTRANK_ROW double normal_quantile_far(double r) {
  const double top[8] = {2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386,
                         0.026532189526576123093,   0.29656057182850489123,    1.7848265399172913358,
                         5.4637849111641143699,     6.6579046435011037772};
  const double bottom[8] = {
      2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
      0.0148753612908506148525,   0.13692988092273580531,   0.59983220655588793769,   1.0};
  return polynomial(top, r - 5.0) / polynomial(bottom, r - 5.0);
}

// The normal quantile at 1/2 + q for |q| > 0.425.
SOFTRANK_ROW double normal_quantile_tail(double q) {
  const double p = q + 0.5;
  const double r = portable_sqrt(-portable_log(q < 0 ? p : 1 - p));
  const double magnitude = r <= 5.0 ? normal_quantile_middle(r) : normal_quantile_far(r);
  return q < 0 ? -magnitude : magnitude;
}

SOFTRANK_ROW bool is_in_centre(double q) { return std::fabs(q) <= 0.425; }

// The middle of the 52-bit cell of (0, 1) that the bits name, less one half: never at an end, symmetric about 0.
SOFTRANK_ROW double centred_cell(uint32_t high, uint32_t low) {
  return (double((uint64_t(high) << 20) | (low >> 12)) + 0.5) * 0x1p-52 - 0.5;
}

template <typename T>
SOFTRANK_ROW void normal_of_bits(uint32_t high, uint32_t low, T& out) {
  const double q = centred_cell(high, low);
  out = T(is_in_centre(q) ? normal_quantile_centre(q) : normal_quantile_tail(q));
}

}  // namespace softrank

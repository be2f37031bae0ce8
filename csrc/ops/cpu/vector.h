// A vector register of T, as wide as the instruction set this file is compiled for, by the compiler's vector extension.
// Everything has internal linkage: the same source is compiled once per instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define SOFTRANK_VECTOR_BYTES 64
#elif defined(__AVX__)
#define SOFTRANK_VECTOR_BYTES 32
#else
#define SOFTRANK_VECTOR_BYTES 16
#endif

namespace softrank {
namespace {

template <typename T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float Type __attribute__((vector_size(SOFTRANK_VECTOR_BYTES)));
  typedef int32_t Bits __attribute__((vector_size(SOFTRANK_VECTOR_BYTES)));
};
template <>
struct VectorOf<double> {
  typedef double Type __attribute__((vector_size(SOFTRANK_VECTOR_BYTES)));
  typedef int64_t Bits __attribute__((vector_size(SOFTRANK_VECTOR_BYTES)));
};

template <typename T>
using Vector = typename VectorOf<T>::Type;
template <typename T>
using VectorBits = typename VectorOf<T>::Bits;
template <typename T>
constexpr int64_t lanes = SOFTRANK_VECTOR_BYTES / sizeof(T);

template <typename T>
inline Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <typename T>
inline void store(T* p, Vector<T> v) {
  std::memcpy(p, &v, sizeof(v));
}

// A subtraction of 0 changes nothing and is dropped by the compiler; adding 0 would turn -0 into 0 and is kept.
template <typename T>
inline Vector<T> broadcast(T value) {
  return value - Vector<T>{};
}

template <typename T>
inline T horizontal_sum(Vector<T> v) {
  T sum = v[0];
  for (int64_t lane = 1; lane < lanes<T>; ++lane) sum += v[lane];
  return sum;
}

template <typename T>
inline T horizontal_max(Vector<T> v) {
  T top = v[0];
  for (int64_t lane = 1; lane < lanes<T>; ++lane) top = v[lane] > top ? v[lane] : top;
  return top;
}

// exp for arguments at or below 0 (-inf gives 0): 2^k e^r with |r| <= ln(2) / 2, e^r by its Taylor polynomial.
inline Vector<float> exp_nonpositive(Vector<float> x) {
  const VectorBits<float> is_zero = x < -87.0f;
  x = is_zero ? broadcast(-87.0f) : x;
  const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vector<float> k = (x * 1.44269504f + shift) - shift;
  const Vector<float> r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  Vector<float> p = broadcast(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const VectorBits<float> exponent = (__builtin_convertvector(k, VectorBits<float>) + 127) << 23;
  return is_zero ? broadcast(0.0f) : p * (Vector<float>)exponent;
}

inline Vector<double> exp_nonpositive(Vector<double> x) {
  const VectorBits<double> is_zero = x < -708.0;
  x = is_zero ? broadcast(-708.0) : x;
  const double shift = 6755399441055744.0;  // 1.5 * 2^52
  const Vector<double> shifted = x * 1.4426950408889634 + shift;
  const Vector<double> k = shifted - shift;
  const Vector<double> r = (x - k * 0.693145751953125) - k * 1.42860682030941723212e-6;
  double factorial = 6227020800.0;  // 13!
  Vector<double> p = broadcast(1.0 / factorial);
  for (int n = 13; n >= 1; --n) {
    factorial /= n;
    p = p * r + 1.0 / factorial;
  }
  // The low bits of `shifted` hold the integer k.
  const VectorBits<double> exponent = (((VectorBits<double>)shifted & 0xFFFFFFFFFFF) + 1023) << 52;
  return is_zero ? broadcast(0.0) : p * (Vector<double>)exponent;
}

}  // namespace
}  // namespace softrank

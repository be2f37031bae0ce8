// CPU kernels of the counter noise; compiled once per instruction set, with floating-point contraction off.
#include "../../kernels/philox.h"
#include "cpu_kernels.h"
#include "isa_kernels.h"
#include "vector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace softrank {
namespace {

typedef uint64_t Words __attribute__((vector_size(SOFTRANK_VECTOR_BYTES)));
constexpr int64_t blocks_at_once = lanes<double>;
constexpr int64_t numbers_at_once = 2 * blocks_at_once;

// Numbers are made in groups: of the normal ones, those in the tails are collected and made together.
constexpr int64_t group = 256;

inline Words low_halves_times(Words words, uint32_t factor) {
  const Words factors = Words{} + uint64_t(factor);
#if defined(__AVX512F__)
  // The plain intrinsic starts from an undefined register, which GCC 12 warns about.
  return (Words)_mm512_maskz_mul_epu32(0xFF, (__m512i)words, (__m512i)factors);
#elif defined(__AVX2__)
  return (Words)_mm256_mul_epu32((__m256i)words, (__m256i)factors);
#elif defined(__SSE2__)
  return (Words)_mm_mul_epu32((__m128i)words, (__m128i)factors);
#else
  return (words & 0xFFFFFFFFu) * factors;
#endif
}

// The words of `blocks_at_once` Philox blocks, in the low halves of the lanes; the high halves hold anything.
struct BlockWords {
  Words w0, w1, w2, w3;
};

inline BlockWords philox_blocks(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t first_pair) {
  Words lane_numbers;
  for (int64_t lane = 0; lane < blocks_at_once; ++lane) lane_numbers[lane] = uint64_t(lane);
  BlockWords words{lane_numbers + uint64_t(first_pair), Words{} + uint64_t(step_and_stream), Words{} + sample,
                   Words{} + (sample >> 32)};
  philox_rounds<low_halves_times>(seed, words.w0, words.w1, words.w2, words.w3);
  return words;
}

// An integer below 2^52 as a double: put it in the mantissa of 2^52.
inline Vector<double> double_of(Words integers) { return (Vector<double>)(integers | 0x4330000000000000u) - 0x1p52; }

inline void store_interleaved(Vector<double> even, Vector<double> odd, double* out) {
  for (int64_t lane = 0; lane < blocks_at_once; ++lane) {
    out[2 * lane] = even[lane];
    out[2 * lane + 1] = odd[lane];
  }
}

// What `uniform_of_bits` does, for the `numbers_at_once` numbers of the blocks.
inline void uniforms_of_words(const BlockWords& words, float* out) {
  // Words 0 and 2 side by side, as 32-bit numbers, are in the order of the numbers.
  const Words high = (words.w0 & 0xFFFFFFFFu) | (words.w2 << 32);
  const VectorBits<float> leading = ((VectorBits<float>)high >> 8) & 0xFFFFFF;
  store(out, __builtin_convertvector(leading, Vector<float>) * 0x1p-24f);
}

inline Vector<double> uniforms_of_halves(Words high, Words low) {
  return double_of(high & 0xFFFFFFFFu) * 0x1p-32 + double_of((low & 0xFFFFFFFFu) >> 11) * 0x1p-53;
}

inline void uniforms_of_words(const BlockWords& words, double* out) {
  store_interleaved(uniforms_of_halves(words.w0, words.w1), uniforms_of_halves(words.w2, words.w3), out);
}

// What `centred_cell` does.
inline Vector<double> centred_cells(Words high, Words low) {
  const Words cell = ((high & 0xFFFFFFFFu) << 20) | ((low & 0xFFFFFFFFu) >> 12);
  return (double_of(cell) + 0.5) * 0x1p-52 - 0.5;
}

// What `portable_log` does.
inline Vector<double> portable_logs(Vector<double> x) {
  const Words bits = (Words)x;
  const Vector<double> half_to_one = (Vector<double>)((bits & 0xFFFFFFFFFFFFFu) | 0x3FE0000000000000u);
  const Vector<double> exponent = double_of(bits >> 52) - 1022.0;
  const VectorBits<double> is_low = half_to_one < 0.7071067811865476;
  return log_of_parts(is_low ? half_to_one * 2.0 : half_to_one, is_low ? exponent - 1.0 : exponent);
}

// What `normal_quantile_tail` does where r <= 5.
inline Vector<double> normal_quantile_tails(Vector<double> q) {
  const Vector<double> p = q + 0.5;
  const Vector<double> r = portable_sqrt(-portable_logs(q < 0.0 ? p : 1.0 - p));
  const Vector<double> magnitude = normal_quantile_middle(r);
  return q < 0.0 ? -magnitude : magnitude;
}

// Makes `count` numbers of a group, rounded up to whole blocks of vectors.
template <typename T>
void normal_group(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t first, int64_t count, T* out) {
  double q[group], numbers[group], tail_q[group + lanes<double>];
  int32_t tail_at[group];
  for (int64_t i = 0; i < count; i += numbers_at_once) {
    const BlockWords words = philox_blocks(seed, sample, step_and_stream, (first + i) / 2);
    store_interleaved(centred_cells(words.w0, words.w1), centred_cells(words.w2, words.w3), q + i);
  }
  for (int64_t i = 0; i < count; i += lanes<double>) store(numbers + i, normal_quantile_centre(load(q + i)));
  int64_t tails = 0;
  for (int64_t i = 0; i < count; ++i) {
    tail_at[tails] = int32_t(i);
    tail_q[tails] = q[i];
    tails += !is_in_centre(q[i]);
  }
  for (int64_t i = tails; i < tails + lanes<double>; ++i) tail_q[i] = 0.43;
  for (int64_t i = 0; i < tails; i += lanes<double>) store(tail_q + i, normal_quantile_tails(load(tail_q + i)));
  for (int64_t i = 0; i < tails; ++i) {
    // r > 5 at a quantile beyond 6.6; 6 is on the safe side.
    const bool is_far = !(tail_q[i] > -6.0 && tail_q[i] < 6.0);
    numbers[tail_at[i]] = is_far ? normal_quantile_tail(q[tail_at[i]]) : tail_q[i];
  }
  for (int64_t i = 0; i < count; ++i) out[i] = T(numbers[i]);
}

// The same for uniform numbers.
template <typename T>
void uniform_group(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t first, int64_t count, T* out) {
  for (int64_t i = 0; i < count; i += numbers_at_once) {
    uniforms_of_words(philox_blocks(seed, sample, step_and_stream, (first + i) / 2), out + i);
  }
}

template <typename T, auto make_group>
void random_numbers(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t first, int64_t count, T* out) {
  int64_t done = 0;
  for (; done + group <= count; done += group) {
    make_group(seed, sample, step_and_stream, first + done, group, out + done);
  }
  if (done < count) {
    T numbers[group];
    make_group(seed, sample, step_and_stream, first + done, count - done, numbers);
    std::memcpy(out + done, numbers, (count - done) * sizeof(T));
  }
}

template <typename T>
void fill(RowKernels<T>& table) {
  table.random_uniform = random_numbers<T, uniform_group<T>>;
  table.random_normal = random_numbers<T, normal_group<T>>;
}

}  // namespace

namespace SOFTRANK_ISA {

void add_random_kernels(CpuKernels& kernels) {
  fill(kernels.float_rows);
  fill(kernels.double_rows);
}

}  // namespace SOFTRANK_ISA
}  // namespace softrank

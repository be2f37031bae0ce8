// The table of CPU kernels: one instance per instruction set, chosen once at run time.
#pragma once

#include <cstdint>

namespace softrank {

// Failures of `pick_rows`, reported as (row, reason).
enum class PickFailure { none, nothing_remains, score_is_nan };

template <typename T>
struct RowKernels {
  // Fold n numbers.
  void (*reflect)(const T* x, T* out, int64_t n);
  // Decode one row of n soft ranks; mask may be null. `scratch` has room for chamber_scratch_bytes(n).
  void (*decode_chamber)(const T* soft_ranks, const bool* mask, int64_t n, int64_t* order, int64_t* ranks, void* scratch);
  // Pick from one row; uniform may be null (greedy). `weights` has room for n numbers, rounded up to a vector.
  PickFailure (*pick)(const T* scores, const bool* remaining, const T* uniform, int64_t n, int64_t* choice, T* log_prob,
                      T* weights);
  // Numbers of one sample: out[0..count).
  void (*random_uniform)(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t count, T* out);
  void (*random_normal)(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t count, T* out);
};

struct CpuKernels {
  const char* capability;
  RowKernels<float> float_rows;
  RowKernels<double> double_rows;
};

// Bytes of scratch that decoding a row of n items may take, whatever the dtype: two arrays of (key, item).
inline int64_t chamber_scratch_bytes(int64_t n) { return 2 * 16 * n + 4096 * 4; }

// The numbers of weights that `pick` may touch: n rounded up to the widest vector.
inline int64_t pick_scratch_numbers(int64_t n) { return (n + 15) / 16 * 16; }

const CpuKernels& cpu_kernels();

template <typename T>
const RowKernels<T>& row_kernels();
template <>
inline const RowKernels<float>& row_kernels<float>() {
  return cpu_kernels().float_rows;
}
template <>
inline const RowKernels<double>& row_kernels<double>() {
  return cpu_kernels().double_rows;
}

}  // namespace softrank

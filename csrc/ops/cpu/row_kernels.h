// Kernels that work on one row: reflect, decode_chamber, pick, random numbers.
#pragma once

#include <cstdint>

namespace softrank {

// Why a row could not be picked from.
enum class PickFailure { none, nothing_remains, score_is_nan, too_many_states };

template <typename T>
struct RowKernels {
  // Fold n numbers.
  void (*reflect)(const T* x, T* out, int64_t n);
  // Decode one row of n soft ranks; mask may be null. `scratch` has room for chamber_scratch_bytes(n).
  void (*decode_chamber)(const T* soft_ranks, const bool* mask, int64_t n, int64_t* order, int64_t* ranks,
                         void* scratch);
  // Pick from one row, greedily if uniform is null; or, if forced is not null, take that item and give its log_prob.
  // `weights` has room for n numbers, rounded up to a vector.
  PickFailure (*pick)(const T* scores, const bool* remaining, const T* uniform, const int64_t* forced, int64_t n,
                      int64_t* choice, T* log_prob, T* weights);
  // Numbers first to first + count - 1 of one sample, into out[0..count); first is even.
  void (*random_uniform)(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t first, int64_t count,
                         T* out);
  void (*random_normal)(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t first, int64_t count, T* out);
};

// Bytes of scratch that decoding a row of n items may take, whatever the dtype: two arrays of (key, item).
inline int64_t chamber_scratch_bytes(int64_t n) { return 2 * 16 * n + 4096 * 4; }

// The numbers of weights that `pick` may touch: n rounded up to the widest vector.
inline int64_t pick_scratch_numbers(int64_t n) { return (n + 15) / 16 * 16; }

}  // namespace softrank

// The CUDA kernels compiled for the host, for ctypes. The functions return an Outcome: 0 finished, 1 trapped, 2
// diverged.
#include "cuda_on_host.h"
// After the stand-ins for CUDA's words.
#include "../../csrc/ops/cuda/row_kernels.cuh"

using cuda_on_host::launch;
using cuda_on_host::Outcome;
using namespace softrank;

namespace {

// Shared memory must hold 0xFF at the start of each block, although the block before wrote to it.
void poison_kernel(int64_t* seen) {
  __shared__ int64_t value[2];
  seen[blockIdx.x] = value[1];
  value[1] = 5;
}

// Half of the threads leave while the others wait, as no kernel may.
void diverging_kernel() {
  if (threadIdx.x < 16) __syncthreads();
}

void two_barriers_kernel() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

template <typename T>
Outcome reflect(const T* x, T* out, int64_t n) {
  return launch(blocks_for(n, largest_block), largest_block, [=] { reflect_kernel<T>(x, out, n); });
}

template <typename T>
Outcome decode_chamber(const T* soft_ranks, const bool* mask, int64_t rows, int64_t n, int64_t* order, int64_t* ranks) {
  const int threads = threads_for_row(n);
  return launch(rows * blocks_for(n, threads), threads,
                [=] { decode_chamber_kernel<T>(soft_ranks, mask, n, order, ranks); });
}

template <typename T>
Outcome pick(const T* scores, const bool* remaining, const T* uniform, int64_t rows, int64_t n, int64_t* choice,
             T* log_prob, T* weights) {
  return launch(rows, threads_for_row(n),
                [=] { pick_kernel<T>(scores, remaining, uniform, n, choice, log_prob, weights); });
}

template <typename T>
Outcome random(bool is_normal, const int64_t* samples, uint64_t seed, uint32_t step_and_stream, int64_t rows,
               int64_t count, T* out) {
  return launch(blocks_for(rows * pairs_of(count), largest_block), largest_block, [=] {
    if (is_normal) {
      random_kernel<T, true>(samples, seed, step_and_stream, rows, count, out);
    } else {
      random_kernel<T, false>(samples, seed, step_and_stream, rows, count, out);
    }
  });
}

}  // namespace

extern "C" {

void ignore_barrier(int line) { cuda_on_host::ignored_barrier = line; }

int run_poison_kernel(int64_t* seen) {
  return int(launch(2, 1, [=] { poison_kernel(seen); }));
}
int run_diverging_kernel() { return int(launch(1, 32, diverging_kernel)); }
int run_two_barriers_kernel() { return int(launch(1, 32, two_barriers_kernel)); }

#define SOFTRANK_EXPORT(T, suffix)                                                                                   \
  int reflect_##suffix(const T* x, T* out, int64_t n) { return int(reflect(x, out, n)); }                            \
  int decode_chamber_##suffix(const T* soft_ranks, const bool* mask, int64_t rows, int64_t n, int64_t* order,        \
                              int64_t* ranks) {                                                                      \
    return int(decode_chamber(soft_ranks, mask, rows, n, order, ranks));                                             \
  }                                                                                                                  \
  int pick_##suffix(const T* scores, const bool* remaining, const T* uniform, int64_t rows, int64_t n,               \
                    int64_t* choice, T* log_prob, T* weights) {                                                      \
    return int(pick(scores, remaining, uniform, rows, n, choice, log_prob, weights));                                \
  }                                                                                                                  \
  int random_##suffix(bool is_normal, const int64_t* samples, uint64_t seed, uint32_t step_and_stream, int64_t rows, \
                      int64_t count, T* out) {                                                                       \
    return int(random(is_normal, samples, seed, step_and_stream, rows, count, out));                                 \
  }
SOFTRANK_EXPORT(float, float32)
SOFTRANK_EXPORT(double, float64)
}

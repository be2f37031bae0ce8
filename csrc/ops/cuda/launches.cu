// The launches. Apart from the torch ops, because nvcc reads a file once per architecture and torch's headers are long.
#include "launch.cuh"
#include "launches.h"
#include "row_kernels.cuh"

namespace softrank {
template <typename T>
void launch_reflect(void* stream, const T* x, T* out, int64_t n) {
  launch("reflect", reflect_kernel<T>, blocks_for(n, largest_block), largest_block, 0, stream, x, out, n);
}

template <typename T>
void launch_decode_chamber(void* stream, const T* soft_ranks, const bool* mask, int64_t rows, int64_t n, int64_t* order,
                           int64_t* ranks) {
  const int threads = threads_for_row(n);
  launch("decode_chamber", decode_chamber_kernel<T>, rows * blocks_for(n, threads), threads, 0, stream, soft_ranks,
         mask, n, order, ranks);
}

template <typename T>
void launch_pick(void* stream, const T* scores, const bool* remaining, const T* uniform, int64_t rows, int64_t n,
                 int64_t* choice, T* log_prob, T* weights) {
  launch("pick", pick_kernel<T>, rows, threads_for_row(n), 0, stream, scores, remaining, uniform, n, choice, log_prob,
         weights);
}

template <typename T>
void launch_random(void* stream, bool is_normal, const int64_t* samples, uint64_t seed, uint32_t step_and_stream,
                   int64_t rows, int64_t count, T* out) {
  launch(is_normal ? "random_normal" : "random_uniform", is_normal ? random_kernel<T, true> : random_kernel<T, false>,
         blocks_for(rows * pairs_of(count), largest_block), largest_block, 0, stream, samples, seed, step_and_stream,
         rows, count, out);
}

#define SOFTRANK_INSTANTIATE(T)                                                                            \
  template void launch_reflect(void*, const T*, T*, int64_t);                                              \
  template void launch_decode_chamber(void*, const T*, const bool*, int64_t, int64_t, int64_t*, int64_t*); \
  template void launch_pick(void*, const T*, const bool*, const T*, int64_t, int64_t, int64_t*, T*, T*);   \
  template void launch_random(void*, bool, const int64_t*, uint64_t, uint32_t, int64_t, int64_t, T*);
SOFTRANK_INSTANTIATE(float)
SOFTRANK_INSTANTIATE(double)
#undef SOFTRANK_INSTANTIATE

}  // namespace softrank

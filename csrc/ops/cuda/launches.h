// Launches of the CUDA kernels on raw device pointers, for T = float and double; row_kernels.cuh says what each
// computes. The current device must be that of the stream (a cudaStream_t). Empty inputs launch nothing. A launch that
// fails throws std::runtime_error.
#pragma once

#include <cstdint>

namespace softrank {

template <typename T>
void launch_reflect(void* stream, const T* x, T* out, int64_t n);

template <typename T>
void launch_decode_chamber(void* stream, const T* soft_ranks, const bool* mask, int64_t rows, int64_t n, int64_t* order,
                           int64_t* ranks);

template <typename T>
void launch_pick(void* stream, const T* scores, const bool* remaining, const T* uniform, int64_t rows, int64_t n,
                 int64_t* choice, T* log_prob, T* weights);

template <typename T>
void launch_random(void* stream, bool is_normal, const int64_t* samples, uint64_t seed, uint32_t step_and_stream,
                   int64_t rows, int64_t count, T* out);

}  // namespace softrank

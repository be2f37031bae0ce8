// CUDA kernel of the counter noise. No torch here: the tests compile this file for the host too. Compile it with
// floating-point contraction off, so that the bits equal the reference.
#pragma once

#include <cstdint>

#include "../../kernels/philox.h"

namespace softrank {

constexpr int random_block = 256;

// Blocks of random_block threads that give each pair of numbers a thread; 0 for B = 0 or count = 0.
inline int64_t random_blocks(int64_t rows, int64_t count) {
  return (rows * ((count + 1) / 2) + random_block - 1) / random_block;
}

// One thread makes one pair of numbers, that is one Philox block; the last pair of an odd row is cut. `samples` (rows)
// and `out` (rows, count) are contiguous. Launch random_blocks(rows, count) blocks of random_block threads.
template <typename T, bool is_normal>
__global__ void random_kernel(const int64_t* samples, uint64_t seed, uint32_t step_and_stream, int64_t rows,
                              int64_t count, T* out) {
  const int64_t pairs = (count + 1) / 2;
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * pairs) return;
  const int64_t row = i / pairs, pair = i % pairs;
  const PhiloxBlock block = philox_block(seed, uint64_t(samples[row]), step_and_stream, uint32_t(pair));
  for (int64_t half = 0; half < 2 && 2 * pair + half < count; ++half) {
    T number;
    if constexpr (is_normal) {
      normal_of_bits(block.word[2 * half], block.word[2 * half + 1], number);
    } else {
      uniform_of_bits(block.word[2 * half], block.word[2 * half + 1], number);
    }
    out[row * count + 2 * pair + half] = number;
  }
}

}  // namespace softrank

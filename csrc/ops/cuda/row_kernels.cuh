// The CUDA kernels and how they are to be launched. No torch here: the tests compile this file for the host too, so it
// uses threads, shared memory and __syncthreads only. Compile with floating-point contraction off
// (--fmad=false): then the random numbers have the bits of the reference.
//
// All arrays are contiguous, rows one after another. Blocks are numbered along x only (2^31 - 1 of them), and nothing
// is launched for B = 0 or N = 0, where the number of blocks is 0.
#pragma once

#include <cmath>
#include <cstdint>

#include "../../kernels/chamber.h"
#include "../../kernels/philox.h"
#include "../../kernels/pick.h"
#include "../../kernels/reflect.h"

namespace softrank {

constexpr int largest_block = 256;

// Threads of a block that works on a row of n items: a power of two (pick halves it), at least a warp.
inline int threads_for_row(int64_t n) {
  int threads = 32;
  while (threads < n && threads < largest_block) threads *= 2;
  return threads;
}

// Blocks that give each of n things a thread.
SOFTRANK_ROW int64_t blocks_for(int64_t n, int64_t threads) { return (n + threads - 1) / threads; }

SOFTRANK_ROW int64_t pairs_of(int64_t count) { return (count + 1) / 2; }

// One thread folds one number. Launch blocks_for(n, largest_block) blocks of largest_block threads.
template <typename T>
__global__ void reflect_kernel(const T* x, T* out, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = reflect_value(x[i]);
}

// One thread owns one item: its rank is the number of items that come before it, so N = 1 needs no care. Ties go to the
// lower item, -0 equals 0, padding (mask may be null: none) comes last by index. NaN counts as +inf.
// Launch threads_for_row(n) threads and rows * blocks_for(n, threads) blocks.
template <typename T>
__global__ void decode_chamber_kernel(const T* soft_ranks, const bool* mask, int64_t n, int64_t* order,
                                      int64_t* ranks) {
  __shared__ T tile_values[largest_block];
  __shared__ uint8_t tile_is_real[largest_block];
  const int64_t threads = blockDim.x, blocks_per_row = blocks_for(n, threads);
  const int64_t row_start = blockIdx.x / blocks_per_row * n;
  const int64_t item = blockIdx.x % blocks_per_row * threads + threadIdx.x;
  // Threads past the end of the row own nothing, but they load tiles and reach every barrier.
  const bool has_item = item < n;
  const T value = has_item ? comparable(soft_ranks[row_start + item]) : T(0);
  const bool is_real = has_item && (mask == nullptr || mask[row_start + item]);
  int64_t rank = 0;
  for (int64_t first = 0; first < n; first += threads) {
    const int64_t loaded = first + threadIdx.x;
    if (loaded < n) {
      tile_values[threadIdx.x] = comparable(soft_ranks[row_start + loaded]);
      tile_is_real[threadIdx.x] = mask == nullptr || mask[row_start + loaded];
    }
    __syncthreads();  // the tile is complete
    const int64_t tile_size = n - first < threads ? n - first : threads;
    for (int64_t i = 0; i < tile_size; ++i) {
      rank += comes_before(tile_values[i], bool(tile_is_real[i]), first + i, value, is_real, item);
    }
    __syncthreads();  // nobody reads the tile any more
  }
  if (!has_item) return;
  ranks[row_start + item] = rank;
  order[row_start + rank] = item;
}

// One block picks from one row; one thread owns a run of neighbouring items (none, if n is small). `uniform` may be
// null: greedy, ties to the lower item. `weights` is scratch for rows * n numbers. The choice is always an item of
// positive weight, hence in the set; for N = 1 it is item 0 with log-probability 0. Launch threads_for_row(n) threads,
// `rows` blocks.
//
// An empty set, or a NaN score in it, gives the first item of the set (0 if there is none) with log-probability NaN,
// which the caller looks for: a trap would cost the process its CUDA context.
template <typename T>
__global__ void pick_kernel(const T* scores, const bool* remaining, const T* uniform, int64_t n, int64_t* choice,
                            T* log_prob, T* weights) {
  __shared__ T tops[largest_block];
  __shared__ int64_t top_items[largest_block];
  __shared__ T run_weights[largest_block];
  const int64_t row = blockIdx.x, me = threadIdx.x, threads = blockDim.x;
  const int64_t run = blocks_for(n, threads);
  const int64_t begin = me * run < n ? me * run : n;
  const int64_t end = begin + run < n ? begin + run : n;
  scores += row * n;
  remaining += row * n;
  weights += row * n;

  // 1. The top score and its lowest item; item n stands for none and loses every tie.
  T top = -T(INFINITY);
  int64_t top_item = n;
  for (int64_t item = begin; item < end; ++item) {
    if (!remaining[item]) continue;
    if (beats(scores[item], item, top, top_item)) {
      top = scores[item];
      top_item = item;
    }
  }
  tops[me] = top;
  top_items[me] = top_item;
  __syncthreads();  // every thread's top is there
  for (int64_t half = threads / 2; half > 0; half /= 2) {
    if (me < half && beats(tops[me + half], top_items[me + half], tops[me], top_items[me])) {
      tops[me] = tops[me + half];
      top_items[me] = top_items[me + half];
    }
    __syncthreads();  // the upper half is merged into the lower
  }
  top = tops[0];
  top_item = top_items[0];

  // 2. The weight of each item and of each run.
  T run_weight = 0;
  for (int64_t item = begin; item < end; ++item) {
    weights[item] = remaining[item] ? std::exp(relative_score(scores[item], top)) : T(0);
    run_weight += weights[item];
  }
  run_weights[me] = run_weight;
  __syncthreads();  // all weights are there

  // 3. One thread walks: to the run that holds the target, then along that run. A run of positive weight has an item of
  // positive weight, and rounding at a run's end stays in the run.
  if (me != 0) return;
  T total = 0;
  for (int64_t i = 0; i < threads; ++i) total += run_weights[i];
  int64_t chosen = top_item;
  if (!(total > T(0))) {  // the top's own weight is 1: a score is NaN, or there is none
    chosen = 0;
    while (chosen < n && !remaining[chosen]) ++chosen;
    choice[row] = chosen < n ? chosen : 0;
    log_prob[row] = T(NAN);
    return;
  }
  if (uniform != nullptr) {
    const T target = uniform[row] * total;
    const int64_t chosen_run = item_at(run_weights, threads, target);
    T weight_before = 0;
    for (int64_t i = 0; i < chosen_run; ++i) weight_before += run_weights[i];
    const int64_t run_begin = chosen_run * run;
    const int64_t run_size = n - run_begin < run ? n - run_begin : run;
    chosen = run_begin + item_at(weights + run_begin, run_size, target, weight_before);
  }
  choice[row] = chosen;
  log_prob[row] = relative_score(scores[chosen], top) - std::log(total);
}

// One thread makes one pair of numbers, that is one Philox block; the last pair of an odd row is cut. `samples` is
// (rows), `out` (rows, count). Launch blocks_for(rows * pairs_of(count), largest_block) blocks of largest_block
// threads.
template <typename T, bool is_normal>
__global__ void random_kernel(const int64_t* samples, uint64_t seed, uint32_t step_and_stream, int64_t rows,
                              int64_t count, T* out) {
  const int64_t pairs = pairs_of(count);
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

// What one warp does in the decoder: norm a token, attend with one head, pick a slot. All lanes call these together.
#pragma once

#include <cmath>

#include "../../kernels/pick.h"
#include "products.cuh"

namespace softrank {

constexpr unsigned whole_warp = 0xFFFFFFFFu;

template <typename T>
__device__ T warp_sum(T value) {
  for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(whole_warp, value, by);
  return value;
}

template <typename T>
__device__ T warp_max(T value) {
  for (int by = 16; by > 0; by /= 2) {
    const T other = __shfl_xor_sync(whole_warp, value, by);
    value = other > value ? other : value;
  }
  return value;
}

// Inner product of n numbers, by one thread. If n is a multiple of 4, both arrays are at multiples of 16 bytes.
template <typename T>
__device__ T inner_product(const T* a, const T* b, int n) {
  T x = 0, y = 0, z = 0, w = 0;
  if (n % 4 == 0) {
// As many loads at once as registers hold.
#pragma unroll 16 / sizeof(T)
    for (int i = 0; i < n; i += 4) {
      const Four<T> left = load_four(a + i), right = load_four(b + i);
      x += left.x * right.x;
      y += left.y * right.y;
      z += left.z * right.z;
      w += left.w * right.w;
    }
  } else {
    for (int i = 0; i < n; ++i) x += a[i] * b[i];
  }
  return (x + y) + (z + w);
}

// Layer norm of one token; norm: weight and bias. out may be x.
template <typename T>
__device__ void norm_token(const T* x, int width, const T* norm, T* out) {
  const int lane = threadIdx.x % 32;
  T sum = 0, squares = 0;
  for (int c = lane; c < width; c += 32) sum += x[c];
  const T mean = warp_sum(sum) / T(width);
  for (int c = lane; c < width; c += 32) squares += (x[c] - mean) * (x[c] - mean);
  const T scale = T(1) / std::sqrt(warp_sum(squares) / T(width) + T(1e-5));
  for (int c = lane; c < width; c += 32) out[c] = (x[c] - mean) * scale * norm[c] + norm[width + c];
}

// Where the keys of positions stand, one head's part of them; values are value_offset further. Positions are rows of an
// array, or rows by a list of them.
template <typename T>
struct Keys {
  const T* first;
  int64_t step, value_offset;
  const int* rows;  // may be null: position i is row i

  __device__ const T* at(int i) const { return first + (rows == nullptr ? i : rows[i]) * step; }
};

// Attention of one head's query over `length` keys. weights: shared memory of this warp for `length` numbers.
template <typename T>
__device__ void attend(const T* query, const Keys<T>& keys, int length, int channels, T* weights, T* out) {
  const int lane = threadIdx.x % 32;
  const T scale = T(1) / std::sqrt(T(channels));
  T top = -T(INFINITY), total = 0;
  for (int i = lane; i < length; i += 32) {
    weights[i] = inner_product(query, keys.at(i), channels) * scale;
    top = weights[i] > top ? weights[i] : top;
  }
  top = warp_max(top);
  for (int i = lane; i < length; i += 32) {
    weights[i] = std::exp(weights[i] - top);
    total += weights[i];
  }
  total = warp_sum(total);
  __syncwarp();  // all weights are there
  // Lanes own channels; if there are few, several lanes share the positions of a channel.
  const int columns = channels < 32 && 32 % channels == 0 ? channels : 32, shares = 32 / columns;
  for (int first = 0; first < channels; first += columns) {
    const int channel = first + lane % columns;
    T sum = 0;
    for (int i = lane / columns; i < length && channel < channels; i += shares) {
      sum += weights[i] * keys.at(i)[keys.value_offset + channel];
    }
    for (int by = 16; by >= columns; by /= 2) sum += __shfl_xor_sync(whole_warp, sum, by);
    if (lane < columns && channel < channels) out[channel] = sum / total;
  }
  __syncwarp();  // nobody reads the weights any more
}

template <typename T>
struct Picked {
  int number;
  T log_prob;
};

// Picks one of `count` slots, among the candidates: the forced one (if not -1), else by the inverse CDF at *uniform,
// else the highest score. A lane owns a run of neighbours. Where a score is NaN or no candidate is left, the
// log-probability is NaN and the pick -1.
template <typename T>
__device__ Picked<T> pick_slot(const T* scores, const bool* candidates, int count, const T* uniform, int forced) {
  const int lane = threadIdx.x % 32, run = (count + 31) / 32;
  const int begin = lane * run < count ? lane * run : count, end = begin + run < count ? begin + run : count;
  // 1. The top score and its lowest slot; `count` stands for none and loses every tie.
  T top = -T(INFINITY);
  int best = count;
  bool is_nan = false;
  for (int i = begin; i < end; ++i) {
    if (!candidates[i]) continue;
    is_nan |= scores[i] != scores[i];
    if (beats(scores[i], i, top, best)) top = scores[i], best = i;
  }
  for (int by = 16; by > 0; by /= 2) {
    const T other = __shfl_xor_sync(whole_warp, top, by);
    const int other_best = __shfl_xor_sync(whole_warp, best, by);
    if (beats(other, other_best, top, best)) top = other, best = other_best;
  }
  if (__ballot_sync(whole_warp, is_nan) != 0 || best == count) return {-1, T(NAN)};
  // 2. The weight of each run and of all runs up to this one.
  const auto weight_of = [&](int i) { return candidates[i] ? std::exp(relative_score(scores[i], top)) : T(0); };
  T up_to = 0;
  for (int i = begin; i < end; ++i) up_to += weight_of(i);
  for (int by = 1; by < 32; by *= 2) {
    const T other = __shfl_up_sync(whole_warp, up_to, by);
    if (lane >= by) up_to += other;
  }
  const T total = __shfl_sync(whole_warp, up_to, 31), before = __shfl_up_sync(whole_warp, up_to, 1);
  int chosen = forced >= 0 ? forced : best;
  // 3. The first slot of positive weight whose cumulative weight passes the target; if rounding leaves none, the last.
  if (forced < 0 && uniform != nullptr) {
    const T target = *uniform * total;
    T cumulative = lane == 0 ? T(0) : before;
    int passing = -1, last = -1;
    for (int i = begin; i < end && passing < 0; ++i) {
      const T weight = weight_of(i);
      cumulative += weight;
      if (!(weight > T(0))) continue;
      last = i;
      if (cumulative > target) passing = i;
    }
    const unsigned passed = __ballot_sync(whole_warp, passing >= 0), positive = __ballot_sync(whole_warp, last >= 0);
    const int holder = passed != 0 ? __ffs(passed) - 1 : 31 - __clz(positive);
    chosen = __shfl_sync(whole_warp, passed != 0 ? passing : last, holder);
  }
  if (!candidates[chosen]) return {chosen, -T(INFINITY)};
  return {chosen, relative_score(scores[chosen], top) - std::log(total)};
}

}  // namespace softrank

// pick: the end of a draw, once the weights exp(score - top) of the remaining items are known.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace softrank {

// exp's argument for an item: 0 for the top score itself, also where both are infinite.
template <typename T>
SOFTRANK_ROW T relative_score(T score, T top) {
  return score == top ? T(0) : score - top;
}

// The higher score wins, ties go to the lower item.
template <typename T>
SOFTRANK_ROW bool beats(T score, int64_t item, T other_score, int64_t other_item) {
  return score > other_score || (score == other_score && item < other_item);
}

// First item whose cumulative weight passes `target`, among those of positive weight; if rounding leaves none, the last
// of positive weight. Returns -1 only when no weight is positive. `cumulative` is the weight of what stands before the
// array.
template <typename T>
SOFTRANK_ROW int64_t item_at(const T* weights, int64_t n, T target, T cumulative = T(0)) {
  for (int64_t item = 0; item < n; ++item) {
    cumulative += weights[item];
    if (cumulative > target && weights[item] > T(0)) return item;
  }
  int64_t last = n - 1;
  while (last >= 0 && !(weights[last] > T(0))) --last;
  return last;
}

}  // namespace softrank

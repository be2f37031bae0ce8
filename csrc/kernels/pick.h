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

// First item whose cumulative weight passes `target`, among those of positive weight; if rounding leaves none, the last of
// positive weight. Returns -1 only when no weight is positive.
template <typename T>
SOFTRANK_ROW int64_t item_at(const T* weights, int64_t n, T target) {
  T cumulative = 0;
  int64_t last = -1;
  for (int64_t item = 0; item < n; ++item) {
    if (weights[item] > T(0)) {
      cumulative += weights[item];
      last = item;
      if (cumulative > target) return item;
    }
  }
  return last;
}

}  // namespace softrank

// Chamber decoding: the total order of (soft rank, item) pairs.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device.h"

namespace softrank {

// What stands for a soft rank in comparisons: NaN, which the public door refuses, counts as +inf, so that the order is
// a permutation even where the door could not look (inside a compiled graph).
template <typename T>
SOFTRANK_ROW T comparable(T value) {
  return value == value ? value : T(INFINITY);
}

// Ties go to the lower item, and 0 equals -0, so the order is that of a stable sort.
template <typename T>
SOFTRANK_ROW bool comes_before(T value, int64_t item, T other_value, int64_t other_item) {
  return value < other_value || (value == other_value && item < other_item);
}

// The same with padding: it stands behind all real items, by index and whatever its soft ranks.
template <typename T>
SOFTRANK_ROW bool comes_before(T value, bool is_real, int64_t item, T other_value, bool other_is_real,
                               int64_t other_item) {
  if (is_real != other_is_real) return is_real;
  return is_real ? comes_before(value, item, other_value, other_item) : item < other_item;
}

}  // namespace softrank

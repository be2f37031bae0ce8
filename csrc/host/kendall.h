// Kendall distance: inversions of a row in O(N log N).
#pragma once

#include <cstdint>
#include <vector>

namespace softrank {

// Bottom-up merge sort; each time an element of the right half overtakes, it passes all that is left of the left half.
inline int64_t inversions_of(std::vector<int64_t>& row, std::vector<int64_t>& merged) {
  const int64_t n = int64_t(row.size());
  int64_t inversions = 0;
  for (int64_t width = 1; width < n; width *= 2) {
    for (int64_t start = 0; start < n; start += 2 * width) {
      const int64_t middle = start + width < n ? start + width : n;
      const int64_t end = start + 2 * width < n ? start + 2 * width : n;
      int64_t left = start, right = middle;
      for (int64_t to = start; to < end; ++to) {
        const bool take_left = right == end || (left < middle && row[left] <= row[right]);
        if (!take_left) inversions += middle - left;
        merged[to] = take_left ? row[left++] : row[right++];
      }
    }
    row.swap(merged);
  }
  return inversions;
}

inline void count_inversions(const int64_t* ranks, int64_t rows, int64_t n, int64_t* counts) {
  std::vector<int64_t> row(n), merged(n);
  for (int64_t b = 0; b < rows; ++b) {
    row.assign(ranks + b * n, ranks + (b + 1) * n);
    counts[b] = inversions_of(row, merged);
  }
}

}  // namespace softrank

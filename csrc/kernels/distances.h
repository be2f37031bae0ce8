// Distances between the items of an instance, for searches that ask for the same ones many times.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace softrank {

// Euclidean distances of points (n, dimensions). Those of few points are kept: a look-up is faster than a root.
class PointDistance {
 public:
  PointDistance(const double* points, int64_t n, int64_t dimensions) : points_(points), n_(n), dimensions_(dimensions) {
    if (n > most_kept) return;
    std::vector<double> kept(n * n);
    for (int64_t a = 0; a < n; ++a) {
      for (int64_t b = 0; b < a; ++b) kept[a * n + b] = kept[b * n + a] = (*this)(a, b);
    }
    kept_.swap(kept);
  }

  bool is_symmetric() const { return true; }

  double operator()(int64_t a, int64_t b) const {
    if (!kept_.empty()) return kept_[a * n_ + b];
    double sum = 0;
    for (int64_t i = 0; i < dimensions_; ++i) {
      const double difference = points_[dimensions_ * a + i] - points_[dimensions_ * b + i];
      sum += difference * difference;
    }
    return std::sqrt(sum);
  }

 private:
  static constexpr int64_t most_kept = 512;
  const double* points_;
  int64_t n_, dimensions_;
  std::vector<double> kept_;
};

// A table (n, n) of distances from row to column.
class MatrixDistance {
 public:
  MatrixDistance(const double* distances, int64_t n, int64_t) : distances_(distances), n_(n) {}

  bool is_symmetric() const {
    for (int64_t a = 0; a < n_; ++a) {
      for (int64_t b = 0; b < a; ++b) {
        if ((*this)(a, b) != (*this)(b, a)) return false;
      }
    }
    return true;
  }

  double operator()(int64_t a, int64_t b) const { return distances_[a * n_ + b]; }

 private:
  const double* distances_;
  int64_t n_;
};

// The `count` nearest other items of each item by distance there or back, nearest first: (n, count).
template <typename Distance>
std::vector<int64_t> near_items(const Distance& distance_of, int64_t n, int64_t count) {
  std::vector<int64_t> all_near(n * std::max<int64_t>(count, 0));
  if (count <= 0) return all_near;
  const bool is_symmetric = distance_of.is_symmetric();
  std::vector<double> to_near(count);
  for (int64_t a = 0; a < n; ++a) {
    // Few items are nearer than the last of the list, so it is kept sorted by insertion.
    std::fill(to_near.begin(), to_near.end(), std::numeric_limits<double>::infinity());
    int64_t* near = &all_near[a * count];
    for (int64_t b = 0; b < n; ++b) {
      if (b == a) continue;
      const double distance = is_symmetric ? distance_of(a, b) : std::min(distance_of(a, b), distance_of(b, a));
      if (!(distance < to_near[count - 1])) continue;
      int64_t i = count - 1;
      for (; i > 0 && distance < to_near[i - 1]; --i) to_near[i] = to_near[i - 1], near[i] = near[i - 1];
      to_near[i] = distance, near[i] = b;
    }
  }
  return all_near;
}

}  // namespace softrank

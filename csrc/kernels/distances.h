// Distances between the items of an instance, for searches that ask for the same ones many times.
#pragma once

#include <cmath>
#include <cstdint>
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

}  // namespace softrank

// 2-opt: shorten a tour by reversing parts of it until no reversal along a list of near neighbours helps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace softrank {

class TwoOpt {
 public:
  // points: (n, 2). neighbours: how many of the nearest points are tried as a new neighbour of each point.
  TwoOpt(const double* points, int64_t n, int64_t neighbours)
      : points_(points), n_(n), near_count_(std::min(neighbours, n - 1)), near_(n * std::max<int64_t>(near_count_, 0)) {
    std::vector<double> to_all(n), to_near(near_.empty() ? 0 : near_count_);
    for (int64_t a = 0; a < n && near_count_ > 0; ++a) {
      for (int64_t b = 0; b < n; ++b) to_all[b] = squared_distance(a, b);
      to_all[a] = infinity;
      // Few points are nearer than the last of the list, so it is kept sorted by insertion.
      std::fill(to_near.begin(), to_near.end(), infinity);
      int64_t* near = &near_[a * near_count_];
      for (int64_t b = 0; b < n; ++b) {
        if (!(to_all[b] < to_near[near_count_ - 1])) continue;
        int64_t i = near_count_ - 1;
        for (; i > 0 && to_all[b] < to_near[i - 1]; --i) to_near[i] = to_near[i - 1], near[i] = near[i - 1];
        to_near[i] = to_all[b], near[i] = b;
      }
    }
  }

  // Shortens `order` (n) in place; its first point stays first.
  void improve(int64_t* order) {
    if (n_ < 4) return;
    tour_.assign(order, order + n_);
    place_.resize(n_);
    for (int64_t place = 0; place < n_; ++place) place_[tour_[place]] = place;
    std::vector<int64_t> queue(tour_);
    std::vector<char> is_queued(n_, 1);
    while (!queue.empty()) {
      const int64_t a = queue.back();
      queue.pop_back();
      is_queued[a] = 0;
      int64_t ends[4];
      while (improve_at(a, ends)) {
        for (const int64_t end : ends) {
          if (!is_queued[end]) {
            is_queued[end] = 1;
            queue.push_back(end);
          }
        }
      }
    }
    std::rotate_copy(tour_.begin(), tour_.begin() + place_[order[0]], tour_.end(), order);
  }

 private:
  double squared_distance(int64_t a, int64_t b) const {
    const double x = points_[2 * a] - points_[2 * b], y = points_[2 * a + 1] - points_[2 * b + 1];
    return x * x + y * y;
  }
  double distance(int64_t a, int64_t b) const { return std::sqrt(squared_distance(a, b)); }
  int64_t after(int64_t a) const { return tour_[place_[a] + 1 == n_ ? 0 : place_[a] + 1]; }
  int64_t before(int64_t a) const { return tour_[place_[a] == 0 ? n_ - 1 : place_[a] - 1]; }

  // Replaces an edge at a, and the edge beside the point that becomes a's neighbour, if that is shorter.
  bool improve_at(int64_t a, int64_t (&ends)[4]) {
    for (const bool is_forward : {true, false}) {
      const int64_t b = is_forward ? after(a) : before(a);
      const double edge = distance(a, b);
      for (int64_t i = 0; i < near_count_; ++i) {
        const int64_t c = near_[a * near_count_ + i];
        const double gained = edge - distance(a, c);
        if (gained <= 0) break;
        const int64_t d = is_forward ? after(c) : before(c);
        // Rounding must not count as an improvement, or two tours of equal length could follow each other for ever.
        if (gained + distance(c, d) - distance(b, d) <= 1e-12 * edge) continue;
        if (is_forward) {
          reverse(place_[b], place_[c]);
        } else {
          reverse(place_[c], place_[b]);
        }
        ends[0] = a, ends[1] = b, ends[2] = c, ends[3] = d;
        return true;
      }
    }
    return false;
  }

  // Reverses the places from `first` to `last`, around the end if need be; the shorter side is turned, which gives the
  // same tour in the other direction.
  void reverse(int64_t first, int64_t last) {
    int64_t inside = last - first + 1;
    if (inside <= 0) inside += n_;
    if (2 * inside > n_) {
      std::swap(first, last);
      first = first + 1 == n_ ? 0 : first + 1;
      last = last == 0 ? n_ - 1 : last - 1;
      inside = n_ - inside;
    }
    for (int64_t i = 0; i < inside / 2; ++i) {
      std::swap(tour_[first], tour_[last]);
      place_[tour_[first]] = first;
      place_[tour_[last]] = last;
      first = first + 1 == n_ ? 0 : first + 1;
      last = last == 0 ? n_ - 1 : last - 1;
    }
  }

  static constexpr double infinity = std::numeric_limits<double>::infinity();
  const double* points_;
  const int64_t n_, near_count_;
  std::vector<int64_t> near_, tour_, place_;
};

}  // namespace softrank

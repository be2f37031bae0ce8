// A length that no closed tour goes below: Held and Karp's, by trees.
//
// M. Held, R. M. Karp, "The traveling-salesman problem and minimum spanning trees", Operations Research 18, 1970. A
// tour is a spanning tree of all nodes but one plus two legs of that one, so the shortest such tree is no longer. A
// number per node, added to all its legs, makes every tour longer by the same; numbers that give each node two legs are
// sought.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace softrank {

class TourBound {
 public:
  // distances: (n, n), the same both ways; n >= 3.
  TourBound(const double* distances, int64_t n)
      : distances_(distances), n_(n), added_(n), legs_(n), near_(n), cost_(n) {}

  // The best bound of `rounds` trees. length: of some tour; sets the size of steps.
  template <typename Stop>
  double run(double length, int64_t rounds, Stop& should_stop) {
    double best = -std::numeric_limits<double>::infinity(), size = 2;
    std::vector<int64_t> last(n_, 2);
    for (int64_t round = 0, since = 0; round < rounds && !should_stop(); ++round) {
      const double bound = tree();
      int64_t off = 0;
      for (const int64_t legs : legs_) off += (legs - 2) * (legs - 2);
      since = bound > best + 1e-12 * std::abs(best) ? 0 : since + 1;
      best = std::max(best, bound);
      if (off == 0 || size < 1e-4) break;  // no node is off: the tree is a tour
      if (since >= 10) size /= 2, since = 0;
      const double step = size * std::max(1.02 * length - bound, 1e-3 * std::abs(length)) / double(off);
      for (int64_t a = 0; a < n_; ++a) {
        added_[a] += step * (0.7 * double(legs_[a] - 2) + 0.3 * double(last[a] - 2));
      }
      last = legs_;
    }
    return best;
  }

 private:
  double leg(int64_t a, int64_t b) const { return distances_[a * n_ + b] + added_[a] + added_[b]; }

  // The shortest tree over nodes 1 ... n - 1, by Prim, and the two shortest legs of node 0; its length less what was
  // added to a tour.
  double tree() {
    std::fill(legs_.begin(), legs_.end(), 0);
    double sum = 0;
    for (int64_t a = 1; a < n_; ++a) {
      near_[a] = 1;
      cost_[a] = leg(1, a);
    }
    near_[1] = -1;
    for (int64_t count = 2; count < n_; ++count) {
      int64_t next = -1;
      for (int64_t a = 2; a < n_; ++a) {
        if (near_[a] >= 0 && (next < 0 || cost_[a] < cost_[next])) next = a;
      }
      sum += cost_[next];
      ++legs_[next];
      ++legs_[near_[next]];
      near_[next] = -1;
      for (int64_t a = 2; a < n_; ++a) {
        if (near_[a] < 0) continue;
        const double cost = leg(next, a);
        if (cost < cost_[a]) cost_[a] = cost, near_[a] = next;
      }
    }
    int64_t first = 1, second = -1;
    for (int64_t a = 2; a < n_; ++a) {
      if (leg(0, a) < leg(0, first)) {
        second = first;
        first = a;
      } else if (second < 0 || leg(0, a) < leg(0, second)) {
        second = a;
      }
    }
    sum += leg(0, first) + leg(0, second);
    legs_[0] = 2;
    ++legs_[first];
    ++legs_[second];
    for (const double added : added_) sum -= 2 * added;
    return sum;
  }

  const double* distances_;
  const int64_t n_;
  std::vector<double> added_;  // to all legs of a node
  std::vector<int64_t> legs_;  // of a node in the tree
  std::vector<int64_t> near_;  // the node of the tree that is nearest, -1 for nodes in it
  std::vector<double> cost_;   // of the leg there
};

}  // namespace softrank

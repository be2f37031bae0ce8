// The best tours of a search that differ from each other, and how long and how boldly a search goes on.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace softrank {

struct IterationOptions {
  int64_t rounds;     // at most; negative for no limit
  double seconds;     // at most; negative for no limit
  int64_t kept;       // tours to keep
  double difference;  // share of the legs in which kept tours differ at least
  double hot, cold;   // a tour longer by this many mean legs is accepted with probability 1 / e: at first, at last
};

// How far a search is, by rounds or by the clock, whichever is further. The clock is read every 16 rounds.
class Progress {
 public:
  explicit Progress(const IterationOptions& options) : options_(options), started_(std::chrono::steady_clock::now()) {}

  bool goes_on() {
    if (options_.rounds >= 0 && round_ >= options_.rounds) return false;
    if (round_ % 16 == 0) look();
    return share_ < 1;
  }
  void count() { ++round_; }
  int64_t rounds() const { return round_; }
  // How much longer than the present tour the next may be, in mean legs, up to a random factor.
  double heat() const { return heat_; }

 private:
  void look() {
    share_ = options_.rounds > 0 ? double(round_) / double(options_.rounds) : 0;
    if (options_.seconds >= 0) {
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started_;
      share_ = options_.seconds > 0 ? std::max(share_, passed.count() / options_.seconds) : 1;
    }
    heat_ = options_.hot * std::pow(options_.cold / options_.hot, std::min(share_, 1.0));
  }

  const IterationOptions options_;
  const std::chrono::steady_clock::time_point started_;
  int64_t round_ = 0;
  double share_ = 0, heat_ = 0;
};

inline int64_t below(int64_t limit, std::mt19937_64& random) { return int64_t(random() % uint64_t(limit)); }
inline double uniform(std::mt19937_64& random) { return double(random() >> 11) * 0x1p-53; }

// Metropolis' rule.
inline bool is_accepted(double length, double present, double heat, std::mt19937_64& random) {
  return length <= present || uniform(random) < std::exp((present - length) / heat);
}

class TourPool {
 public:
  TourPool(int64_t n, const IterationOptions& options, bool is_closed, bool is_symmetric)
      : n_(n),
        most_(options.kept),
        legs_(is_closed ? n : n - 1),
        least_(std::max<int64_t>(1, int64_t(std::ceil(options.difference * double(legs_))))),
        is_symmetric_(is_symmetric) {}

  // Whether a tour of this length can be of use.
  bool wants(double length) const {
    if (int64_t(tours_.size()) < most_) return true;
    const double longest = tours_.back().length;
    return length < longest - 1e-12 * std::abs(longest);
  }

  void offer(const int64_t* order, double length) {
    // It stays out if a tour that is no longer is too much like it, and drives out longer ones that are.
    for (const Tour& tour : tours_) {
      if (tour.length <= length && legs_apart(tour, order) < least_) return;
    }
    std::erase_if(tours_, [&](const Tour& tour) { return legs_apart(tour, order) < least_; });
    Tour added{length, std::vector<int64_t>(order, order + n_), std::vector<int64_t>(n_, -1)};
    for (int64_t leg = 0; leg < legs_; ++leg) added.next[order[leg]] = order[leg + 1 < n_ ? leg + 1 : 0];
    const auto at = std::upper_bound(tours_.begin(), tours_.end(), length,
                                     [](double own, const Tour& tour) { return own < tour.length; });
    tours_.insert(at, std::move(added));
    if (int64_t(tours_.size()) > most_) tours_.pop_back();
  }

  int64_t size() const { return int64_t(tours_.size()); }
  const std::vector<int64_t>& order(int64_t number) const { return tours_[number].order; }
  double length(int64_t number) const { return tours_[number].length; }

 private:
  struct Tour {
    double length;
    std::vector<int64_t> order, next;  // next: the item after an item, -1 for none
  };

  int64_t legs_apart(const Tour& tour, const int64_t* order) const {
    int64_t apart = 0;
    for (int64_t leg = 0; leg < legs_; ++leg) {
      const int64_t a = order[leg], b = order[leg + 1 < n_ ? leg + 1 : 0];
      apart += !(tour.next[a] == b || (is_symmetric_ && tour.next[b] == a));
    }
    return apart;
  }

  const int64_t n_, most_, legs_, least_;
  const bool is_symmetric_;
  std::vector<Tour> tours_;  // by length
};

}  // namespace softrank

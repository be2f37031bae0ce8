// Tours under order pairs: some items near each other are taken out, with their partners, and put back where it is
// cheapest, a pair at once; the result is accepted as simulated annealing does.
//
// Taking out and putting back: G. Schrimpf et al., "Record breaking optimization results using the ruin and recreate
// principle", J. Comp. Phys. 159, 2000; leaving a place out now and then ("blinks"): J. Christiaens, G. Vanden Berghe,
// "Slack induction by string removals for vehicle routing problems", Transportation Science 54, 2020.
#pragma once

#include "constraints.h"
#include "distances.h"
#include "tour_pool.h"

namespace softrank {

template <typename Distance>
class TourRebuild {
 public:
  // before: (n, n), null for no pairs. keeps_first, keeps_last: nothing moves to or from that end.
  TourRebuild(Distance distance, int64_t n, bool is_closed, int64_t neighbours, const bool* before, bool keeps_first,
              bool keeps_last)
      : distance_(std::move(distance)),
        n_(n),
        is_closed_(is_closed),
        keeps_first_(keeps_first),
        keeps_last_(keeps_last),
        near_count_(std::min(neighbours, n - 1)),
        near_(near_items(distance_, n, near_count_)),
        partners_(n),
        earlier_(n),
        later_(n),
        place_(n, -1) {
    if (before != nullptr) read_pairs(before);
  }

  // As TourIterations::run.
  template <typename Stop>
  int64_t run(const int64_t* order, const IterationOptions& options, uint64_t seed, TourPool& pool, Stop& should_stop) {
    Progress progress(options);
    std::mt19937_64 random(seed);
    present_.assign(order, order + n_);
    const double given = length(present_);
    double present = given;
    const int64_t free = n_ - keeps_first_ - keeps_last_;
    for (; free >= 2 && progress.goes_on() && !should_stop(); progress.count()) {
      tour_ = present_;
      take_out(1 + below(std::min<int64_t>(most_removed, free - 1), random), random);
      put_back(random);
      const double own = length(tour_);
      if (pool.wants(own)) pool.offer(tour_.data(), own);
      if (is_accepted(own, present, progress.heat() * std::abs(present) / double(n_), random)) {
        present_ = tour_;
        present = own;
      }
    }
    if (pool.size() == 0 || given < pool.length(0)) pool.offer(order, given);
    return progress.rounds();
  }

 private:
  static constexpr int64_t most_removed = 10;      // items taken out in a round, partners apart
  static constexpr int64_t most_partners = 4;      // of an item that are taken out with it
  static constexpr int64_t places_per_blink = 64;  // of so many places about one is left out

  void read_pairs(const bool* before) {
    for (int64_t a = 0; a < n_; ++a) {
      for (int64_t b = 0; b < n_; ++b) {
        if (!before[a * n_ + b]) continue;
        partners_[a].push_back(b);
        partners_[b].push_back(a);
      }
    }
    // Whatever must come later, also by way of others: items of a part of the order can then be put back one by one.
    std::vector<int64_t> open;
    std::vector<int64_t> seen(n_, -1);
    for (int64_t a = 0; a < n_; ++a) {
      open = {a};
      while (!open.empty()) {
        const int64_t from = open.back();
        open.pop_back();
        for (const int64_t b : partners_[from]) {
          if (!before[from * n_ + b] || seen[b] == a) continue;
          seen[b] = a;
          later_[a].push_back(b);
          earlier_[b].push_back(a);
          open.push_back(b);
        }
      }
    }
  }

  double length(const std::vector<int64_t>& tour) const {
    double sum = is_closed_ ? distance_(tour.back(), tour.front()) : 0;
    for (size_t place = 1; place < tour.size(); ++place) sum += distance_(tour[place - 1], tour[place]);
    return sum;
  }

  // Takes out `count` items, neighbours in the tour or in space, and their partners.
  void take_out(int64_t count, std::mt19937_64& random) {
    removed_.clear();
    is_removed_.assign(n_, 0);
    const int64_t size = int64_t(tour_.size());
    const int64_t from = keeps_first_ + below(size - keeps_first_ - keeps_last_, random);
    const bool is_string = random() % 2 == 0;
    remove_with_partners(tour_[from]);
    for (int64_t tries = 4 * count, next = 1; tries > 0 && int64_t(removed_.size()) < count; --tries) {
      if (is_string) {
        remove_with_partners(tour_[(from + next++) % size]);
      } else {
        const int64_t about = removed_[below(int64_t(removed_.size()), random)];
        remove_with_partners(near_[about * near_count_ + below(near_count_, random)]);
      }
    }
    std::erase_if(tour_, [&](int64_t item) { return is_removed_[item] != 0; });
    for (size_t i = removed_.size(); i > 1; --i) std::swap(removed_[i - 1], removed_[below(int64_t(i), random)]);
    std::fill(place_.begin(), place_.end(), -1);
    number(0);
  }

  void remove_with_partners(int64_t item) {
    if (!remove(item) || int64_t(partners_[item].size()) > most_partners) return;
    for (const int64_t partner : partners_[item]) remove(partner);
  }

  // One item at least stays.
  bool remove(int64_t item) {
    if (is_removed_[item] || int64_t(removed_.size()) + 1 >= n_) return false;
    if ((keeps_first_ && item == tour_.front()) || (keeps_last_ && item == tour_.back())) return false;
    is_removed_[item] = 1;
    removed_.push_back(item);
    return true;
  }

  void number(int64_t from) {
    for (size_t place = from; place < tour_.size(); ++place) place_[tour_[place]] = int64_t(place);
  }

  void put_back(std::mt19937_64& random) {
    for (const int64_t item : removed_) {
      if (place_[item] >= 0) continue;
      const int64_t partner = later_[item].size() + earlier_[item].size() != 1 ? -1
                              : later_[item].empty()                           ? earlier_[item][0]
                                                                               : later_[item][0];
      if (partner >= 0 && place_[partner] < 0 && later_[partner].size() + earlier_[partner].size() == 1) {
        const bool is_earlier = !later_[item].empty();
        put_pair(is_earlier ? item : partner, is_earlier ? partner : item, random);
      } else {
        put_item(item, random);
      }
    }
  }

  // Gap g lies before the item at place g. What putting an item there costs.
  double cost_at(int64_t item, int64_t gap) const {
    const int64_t size = int64_t(tour_.size());
    const int64_t before = gap > 0 ? tour_[gap - 1] : is_closed_ ? tour_[size - 1] : -1;
    const int64_t after = gap < size ? tour_[gap] : is_closed_ ? tour_[0] : -1;
    if (before < 0) return distance_(item, after);
    if (after < 0) return distance_(before, item);
    return distance_(before, item) + distance_(item, after) - distance_(before, after);
  }

  int64_t first_gap() const { return keeps_first_; }
  int64_t last_gap() const { return int64_t(tour_.size()) - keeps_last_; }

  int64_t next_blink(int64_t gap, std::mt19937_64& random) const {
    return gap + 1 + below(2 * places_per_blink, random);
  }

  void put_item(int64_t item, std::mt19937_64& random) {
    int64_t first = first_gap(), last = last_gap();
    for (const int64_t other : earlier_[item]) first = std::max(first, place_[other] + 1);
    for (const int64_t other : later_[item]) last = place_[other] < 0 ? last : std::min(last, place_[other]);
    int64_t best = first, blink = next_blink(first, random);
    double least = cost_at(item, first);
    for (int64_t gap = first + 1; gap <= last; ++gap) {
      if (gap == blink) {
        blink = next_blink(gap, random);
        continue;
      }
      const double cost = cost_at(item, gap);
      if (cost < least) least = cost, best = gap;
    }
    insert(item, best);
  }

  // Puts a and, behind it, b where both together cost least.
  void put_pair(int64_t a, int64_t b, std::mt19937_64& random) {
    const int64_t first = first_gap(), last = last_gap(), size = int64_t(tour_.size());
    double least = std::numeric_limits<double>::infinity(), least_a = least;
    int64_t best_a = first, best_b = first, own_a = first, blink = next_blink(first, random);
    for (int64_t gap = first; gap <= last; ++gap) {
      if (gap == blink) {
        blink = next_blink(gap, random);
        continue;
      }
      // Both in this gap, or b here and a in the cheapest gap before it.
      const double cost_a = cost_at(a, gap), cost_b = cost_at(b, gap);
      const int64_t after = gap < size ? tour_[gap] : is_closed_ ? tour_[0] : -1;
      const double together = cost_a + distance_(a, b) + (after < 0 ? 0 : distance_(b, after) - distance_(a, after));
      if (together < least) least = together, best_a = best_b = gap;
      double apart = least_a + cost_b;
      // The ends of a closed tour are one gap: there b stands right before a.
      if (is_closed_ && gap == size && own_a == 0) {
        apart = distance_(tour_[size - 1], b) + distance_(b, a) + distance_(a, tour_[0]) -
                distance_(tour_[size - 1], tour_[0]);
      }
      if (apart < least) least = apart, best_a = own_a, best_b = gap;
      if (cost_a < least_a) least_a = cost_a, own_a = gap;
    }
    insert(b, best_b);
    insert(a, best_a);
  }

  void insert(int64_t item, int64_t gap) {
    tour_.insert(tour_.begin() + gap, item);
    number(gap);
  }

  const Distance distance_;
  const int64_t n_;
  const bool is_closed_, keeps_first_, keeps_last_;
  const int64_t near_count_;
  const std::vector<int64_t> near_;                               // (n, near_count)
  std::vector<std::vector<int64_t>> partners_, earlier_, later_;  // by pairs as given; by all that follows from them
  std::vector<int64_t> place_;                                    // of an item in tour_, -1 if it is out
  std::vector<int64_t> present_, tour_, removed_;
  std::vector<char> is_removed_;
};

}  // namespace softrank

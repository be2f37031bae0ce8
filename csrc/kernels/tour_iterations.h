// Iterated local search on tours: two neighbouring parts change places (a double bridge), the local search of
// tour_search.h mends what that broke, and the result is accepted as simulated annealing does, or taken back.
//
// A round costs about as much as the few places that it changes, not as the tour: moves are tried at the ends of
// changed legs alone, and only changed places are copied back.
#pragma once

#include "tour_pool.h"
#include "tour_search.h"

namespace softrank {

template <typename Distance>
class TourIterations : TourSearch<Distance> {
 public:
  using Base = TourSearch<Distance>;

  TourIterations(Distance distance, int64_t n, const TourOptions& options) : Base(std::move(distance), n, options) {}

  // Looks for shorter tours than order (n), which keeps the rules, and offers them to the pool; returns the rounds run.
  template <typename Stop>
  int64_t run(const int64_t* order, KeptRules& rules, const IterationOptions& options, uint64_t seed, TourPool& pool,
              Stop& should_stop) {
    Progress progress(options);
    if (nodes_ < 3) {
      pool.offer(order, 0);
      return 0;
    }
    std::mt19937_64 random(seed);
    begin(order, rules);
    length_ = length();
    descend(should_stop);
    offer(order, pool);
    kept_ = tour_;
    double present = length_;
    notes_changes_ = true;
    // A row's first item stays where it is if a rule says so; the row ends before the node that closes an open tour.
    const int64_t first = is_row_ && rules.keeps_first() ? 1 : 0;
    const int64_t places = (is_row_ ? n_ : nodes_) - first;
    for (; places >= 3 && progress.goes_on() && !should_stop(); progress.count()) {
      changes_.clear();
      // Around pinned places only items change places, not parts.
      const bool is_changed =
          is_row_ && random() % 2 == 0 ? exchange_items(first, places, random) : exchange_parts(first, places, random);
      if (!is_changed) continue;
      descend_from_queue(should_stop);
      if (is_accepted(length_, present, progress.heat() * std::abs(present) / double(n_), random)) {
        present = length_;
        keep();
        if (pool.wants(length_)) offer(order, pool);
      } else {
        if (pool.wants(length_)) offer(order, pool);
        take_back();
        length_ = present;
      }
    }
    notes_changes_ = false;
    return progress.rounds();
  }

 private:
  using Base::add_up, Base::at, Base::begin, Base::changed_, Base::changes_, Base::descend, Base::descend_from_queue;
  using Base::distance, Base::enqueue, Base::is_row_, Base::is_symmetric_, Base::length_, Base::n_, Base::nodes_;
  using Base::note, Base::notes_changes_, Base::place_, Base::put, Base::tour_, Base::wrapped, Base::write;

  static constexpr int64_t longest_part = 50;

  // The length of the present tour, added up anew: rounding does not pile up.
  double length() const {
    double sum = 0;
    for (int64_t place = 0; place < nodes_; ++place) sum += distance(tour_[place], at(place + 1));
    return sum;
  }

  void offer(const int64_t* order, TourPool& pool) {
    written_.assign(order, order + n_);
    write(written_.data());
    length_ = length();
    pool.offer(written_.data(), length_);
  }

  // Two parts next to each other, of up to longest_part places, change places; false if a rule is against it.
  bool exchange_parts(int64_t first, int64_t places, std::mt19937_64& random) {
    const int64_t longest = std::min(longest_part, (places - 1) / 2);
    const int64_t left = 1 + below(longest, random), right = 1 + below(longest, random), size = left + right;
    const int64_t from = first + below(is_row_ ? places - size + 1 : places, random), middle = from + left;
    const int64_t a = at(from - 1), b = at(from), c = at(middle - 1), d = at(middle), e = at(from + size - 1),
                  f = at(from + size);
    changed_.clear();
    for (int64_t place = middle; place < from + size; ++place) changed_.push_back(at(place));
    for (int64_t place = from; place < middle; ++place) changed_.push_back(at(place));
    const double added = distance(a, d) + distance(e, b) + distance(c, f);
    const double removed = distance(a, b) + distance(c, d) + distance(e, f);
    if (is_row_) {
      if (!put(from, from + size - 1)) return false;
    } else {
      note(wrapped(from), size);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t place = wrapped(from + i);
        tour_[place] = changed_[i];
        place_[changed_[i]] = place;
      }
      add_up();
    }
    length_ += added - removed;
    for (const int64_t node : {a, b, c, d, e, f}) enqueue(node);
    return true;
  }

  // In a row: two items change places; false if a rule is against it.
  bool exchange_items(int64_t first, int64_t places, std::mt19937_64& random) {
    int64_t p = first + below(places, random), q = first + below(places, random);
    if (p > q) std::swap(p, q);
    if (q - p < 2) return false;  // neighbours are parts
    const int64_t a = tour_[p], b = tour_[q];
    changed_.assign(tour_.begin() + p, tour_.begin() + q + 1);
    std::swap(changed_.front(), changed_.back());
    if (!put(p, q)) return false;
    length_ = length();
    for (const int64_t node : {a, b, at(p - 1), at(p + 1), at(q - 1), at(q + 1)}) enqueue(node);
    return true;
  }

  void keep() {
    for (const auto& [first, count] : changes_) {
      for (int64_t i = 0; i < count; ++i) kept_[wrapped(first + i)] = tour_[wrapped(first + i)];
    }
  }

  void take_back() {
    for (const auto& [first, count] : changes_) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t place = wrapped(first + i);
        tour_[place] = kept_[place];
        place_[kept_[place]] = place;
      }
    }
    add_up();
  }

  std::vector<int64_t> kept_, written_;  // the present tour by place; a tour as a row
};

}  // namespace softrank

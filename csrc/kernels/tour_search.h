// Local search on tours: reversals (2-opt), insertions of up to three items in a row (Or-opt) and swaps, tried along
// lists of near neighbours until none of them helps.
//
// An open tour is a closed one through one more node, number n, at distance 0 from all others. Without rules places are
// free to turn around the circle; with rules the order is a row, whose places count, and moves that break a rule are
// not made.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "distances.h"
#include "kept_rules.h"

namespace softrank {

struct TourOptions {
  bool is_closed, tries_inserts, tries_swaps, tries_reversals;
  int64_t neighbours;  // how many of the nearest items are tried as a new neighbour of an item
  int64_t most_moves;  // negative for no limit
};

template <typename Distance>
class TourSearch {
 public:
  TourSearch(Distance distance, int64_t n, const TourOptions& options)
      : distance_of_(std::move(distance)),
        options_(options),
        n_(n),
        nodes_(options.is_closed ? n : n + 1),
        near_count_(std::min(options.neighbours, n - 1)) {
    is_symmetric_ = distance_of_.is_symmetric();
    near_ = near_items(distance_of_, n, near_count_);
  }

  // Improves order (n) in place, until no move helps, the limit is reached or should_stop() is true.
  // rules: what the order keeps and must keep.
  template <typename Stop>
  void improve(int64_t* order, KeptRules& rules, Stop& should_stop) {
    if (nodes_ < 3) return;
    begin(order, rules);
    descend(should_stop);
    write(order);
  }

 protected:
  // Makes moves that help until none does.
  template <typename Stop>
  void descend(Stop& should_stop) {
    bool has_moved = true;
    while (has_moved && moves_left_ != 0) {
      // A node whose edges did not change may still gain from a changed edge elsewhere: a last round asks all.
      queue_.assign(tour_.begin(), tour_.end());
      is_queued_.assign(nodes_, 1);
      has_moved = descend_from_queue(should_stop);
      if (moves_left_ != 0 && options_.tries_reversals && reverse_all()) {
        has_moved = true;
        --moves_left_;
        length_ += change_;
      }
    }
  }

  // Makes moves that help at the nodes of the queue, which those that a move touches join; returns whether any did.
  template <typename Stop>
  bool descend_from_queue(Stop& should_stop) {
    bool has_moved = false;
    while (!queue_.empty() && moves_left_ != 0) {
      const int64_t a = queue_.back();
      queue_.pop_back();
      is_queued_[a] = 0;
      if (a == n_) continue;
      while (moves_left_ != 0 && improve_at(a)) {
        has_moved = true;
        --moves_left_;
        length_ += change_;
        for (const int64_t end : touched_) enqueue(end);
        if (should_stop()) moves_left_ = 0;
      }
      if (should_stop()) moves_left_ = 0;
    }
    return has_moved;
  }

  void enqueue(int64_t a) {
    if (is_queued_[a]) return;
    is_queued_[a] = 1;
    queue_.push_back(a);
  }

  void write(int64_t* order) const {
    if (is_row_) {
      std::copy_n(tour_.begin(), n_, order);
    } else {
      const int64_t start = options_.is_closed ? place_[order[0]] : (place_[n_] + 1) % nodes_;
      for (int64_t place = 0; place < n_; ++place) order[place] = tour_[(start + place) % nodes_];
    }
  }

  void begin(const int64_t* order, KeptRules& rules) {
    rules_ = &rules;
    // A closed tour keeps its first item by turning around the circle.
    is_row_ = rules.has_rules() || (!options_.is_closed && rules.keeps_first());
    tour_.assign(order, order + n_);
    if (!options_.is_closed) tour_.push_back(n_);
    place_.resize(nodes_);
    for (int64_t place = 0; place < nodes_; ++place) place_[tour_[place]] = place;
    moves_left_ = options_.most_moves;
    add_up();
    rounding_ = 0;
    for (const double sum : sums_) rounding_ = std::max(rounding_, 1e-12 * std::abs(sum));
  }

  double distance(int64_t a, int64_t b) const { return a == n_ || b == n_ ? 0 : distance_of_(a, b); }
  int64_t wrapped(int64_t place) const { return place >= nodes_ ? place - nodes_ : place < 0 ? place + nodes_ : place; }
  int64_t at(int64_t place) const { return tour_[wrapped(place)]; }
  int64_t after(int64_t a) const { return at(place_[a] + 1); }
  int64_t before(int64_t a) const { return at(place_[a] - 1); }
  const int64_t* near(int64_t a) const { return &near_[a * near_count_]; }

  // Rounding must not count as an improvement, or two tours of equal length could follow each other for ever.
  bool is_shorter(double added, double removed) {
    change_ = added - removed;
    return change_ < -1e-12 * std::abs(removed) - rounding_;
  }

  // How much longer the way from place `first` to `last` gets if it is gone backwards.
  double turned(int64_t first, int64_t last) const {
    if (is_symmetric_) return 0;
    return sums_[last] - sums_[first] + (last < first ? sums_[nodes_] : 0);
  }

  void add_up() {
    if (is_symmetric_) return;
    sums_.assign(nodes_ + 1, 0);
    for (int64_t place = 0; place < nodes_; ++place) {
      const int64_t a = tour_[place], b = at(place + 1);
      sums_[place + 1] = sums_[place] + distance(b, a) - distance(a, b);
    }
  }

  bool improve_at(int64_t a) {
    return (options_.tries_reversals && reverse_at(a)) ||
           (options_.tries_inserts && (insert_from(a) || insert_at(a))) || (options_.tries_swaps && swap_at(a));
  }

  // Replaces an edge at a, and the edge beside the item that becomes a's neighbour.
  bool reverse_at(int64_t a) {
    for (const bool is_forward : {true, false}) {
      const int64_t b = is_forward ? after(a) : before(a);
      const double edge = distance(a, b);
      for (int64_t i = 0; i < near_count_; ++i) {
        const int64_t c = near(a)[i];
        if (is_symmetric_ && edge <= distance(a, c)) break;
        if (c == b) continue;
        const int64_t d = is_forward ? after(c) : before(c);
        if (is_forward) {
          // a b ... c d becomes a c ... b d
          const double added = distance(a, c) + distance(b, d) + turned(place_[b], place_[c]);
          if (!is_shorter(added, edge + distance(c, d))) continue;
        } else {
          // d c ... b a becomes d b ... c a
          const double added = distance(d, b) + distance(c, a) + turned(place_[c], place_[b]);
          if (!is_shorter(added, distance(d, c) + distance(b, a))) continue;
        }
        const int64_t first = is_forward ? b : c, last = is_forward ? c : b;
        if (!reverse(place_[first], place_[last])) continue;
        touched_ = {a, b, c, d};
        return true;
      }
    }
    return false;
  }

  // Goes the whole tour backwards: of one-way distances, the only reversal that replaces no single edge.
  bool reverse_all() {
    if (is_symmetric_ || sums_[nodes_] >= -rounding_) return false;
    change_ = sums_[nodes_];
    if (!is_row_) {
      turn(0, nodes_);
      add_up();
      return true;
    }
    changed_.assign(tour_.rend() - n_, tour_.rend());
    return put(0, n_ - 1);
  }

  // A part of up to three places; its ends, and the items around it.
  struct Part {
    int64_t place, size, first, last, before, after;
  };
  Part part_of(int64_t place, int64_t size) const {
    place = wrapped(place);
    return {place, size, tour_[place], at(place + size - 1), at(place - 1), at(place + size)};
  }
  bool is_inside(const Part& part, int64_t a) const { return wrapped(place_[a] - part.place) < part.size; }

  // Calls body(part) for the parts of one to three places that end at a, until it returns true.
  template <typename Body>
  bool any_part(int64_t a, Body body) const {
    const int64_t largest = std::min<int64_t>(3, nodes_ - 2);
    for (int64_t size = 1; size <= largest; ++size) {
      for (const bool is_begin : {true, false}) {
        if (size == 1 && !is_begin) continue;
        const Part part = part_of(is_begin ? place_[a] : place_[a] - size + 1, size);
        if (!options_.is_closed && is_inside(part, n_)) continue;
        if (is_row_ && part.place + size > nodes_) continue;
        if (body(part)) return true;
      }
    }
    return false;
  }

  // Puts a part that ends at a beside a near neighbour of a.
  bool insert_from(int64_t a) {
    return any_part(a, [&](const Part& part) {
      const double entry = distance(part.before, part.first), exit = distance(part.last, part.after);
      const double freed = entry + exit - distance(part.before, part.after);
      // Of the edges of a helpful move some two, one old and one new, meet with a gain: here, in `insert_at`, or after
      // the gain of taking the part out.
      const double bound = std::max({freed, a == part.first ? entry : 0, a == part.last ? exit : 0});
      for (int64_t i = 0; i < near_count_; ++i) {
        const int64_t c = near(a)[i];
        if (is_symmetric_ && bound <= distance(a, c)) break;
        if (is_inside(part, c)) continue;
        if (insert(part, c, after(c), a == part.first) || insert(part, before(c), c, a == part.last)) return true;
      }
      return false;
    });
  }

  // Puts a part that ends at a near neighbour of a beside a.
  bool insert_at(int64_t a) {
    for (const bool is_forward : {true, false}) {
      const int64_t b = is_forward ? after(a) : before(a);
      const double edge = distance(a, b);
      for (int64_t i = 0; i < near_count_; ++i) {
        const int64_t c = near(a)[i];
        if (is_symmetric_ && edge <= distance(a, c)) break;
        const bool is_done = any_part(c, [&](const Part& part) {
          return is_forward ? insert(part, a, b, c == part.first) : insert(part, b, a, c == part.last);
        });
        if (is_done) return true;
      }
    }
    return false;
  }

  // Moves a part between a and b, which follow each other outside of it, as it is or turned, if that helps.
  bool insert(const Part& part, int64_t a, int64_t b, bool is_straight) {
    if (is_inside(part, a) || is_inside(part, b)) return false;
    const double removed = distance(part.before, part.first) + distance(part.last, part.after) + distance(a, b);
    double added = distance(part.before, part.after);
    if (is_straight) {
      added += distance(a, part.first) + distance(part.last, b);
    } else {
      added +=
          distance(a, part.last) + distance(part.first, b) + turned(part.place, wrapped(part.place + part.size - 1));
    }
    if (!is_shorter(added, removed)) return false;
    if (!move_part(part, place_[a], is_straight)) return false;
    touched_ = {part.before, part.after, part.first, part.last, a, b};
    return true;
  }

  // Swaps a with a near neighbour of a, or with an item beside one.
  bool swap_at(int64_t a) {
    for (int64_t i = 0; i < near_count_; ++i) {
      const int64_t c = near(a)[i];
      for (const int64_t other : {after(c), before(c), c}) {
        if (other != a && other != n_ && swap(a, other)) return true;
      }
    }
    return false;
  }

  bool swap(int64_t a, int64_t b) {
    const int64_t p = place_[a], q = place_[b];
    // The edges that change, by the place they begin at, each once.
    int64_t edges[4] = {wrapped(p - 1), p, wrapped(q - 1), q};
    std::sort(edges, edges + 4);
    const auto end = std::unique(edges, edges + 4);
    double removed = 0, added = 0;
    const auto swapped = [&](int64_t item) { return item == a ? b : item == b ? a : item; };
    for (auto edge = edges; edge != end; ++edge) {
      const int64_t from = tour_[*edge], to = at(*edge + 1);
      removed += distance(from, to);
      added += distance(swapped(from), swapped(to));
    }
    if (!is_shorter(added, removed)) return false;
    if (is_row_) {
      const int64_t first = std::min(p, q), last = std::max(p, q);
      changed_.assign(tour_.begin() + first, tour_.begin() + last + 1);
      std::swap(changed_.front(), changed_.back());
      if (!put(first, last)) return false;
    } else {
      std::swap(tour_[p], tour_[q]);
      std::swap(place_[a], place_[b]);
      note(p, 1);
      note(q, 1);
      add_up();
    }
    touched_ = {a, b, at(p - 1), at(p + 1), at(q - 1), at(q + 1)};
    return true;
  }

  // Reverses the places from `first` to `last`, around the end if need be; false if a rule is against it.
  bool reverse(int64_t first, int64_t last) {
    int64_t inside = wrapped(last - first) + 1;
    const bool is_wrapped = first > last;
    // The same tour in the other direction.
    if (is_symmetric_ && (is_row_ ? is_wrapped : 2 * inside > nodes_)) {
      std::swap(first, last);
      first = wrapped(first + 1);
      last = wrapped(last - 1);
      inside = nodes_ - inside;
    }
    if (is_row_) {
      if (first > last) return false;
      changed_.assign(tour_.begin() + first, tour_.begin() + last + 1);
      std::reverse(changed_.begin(), changed_.end());
      return put(first, last);
    }
    turn(first, inside);
    add_up();
    return true;
  }

  // Reverses `count` places from `first` on, around the end if need be.
  void turn(int64_t first, int64_t count) {
    note(first, count);
    int64_t last = wrapped(first + count - 1);
    for (int64_t i = 0; i < count / 2; ++i) {
      std::swap(tour_[first], tour_[last]);
      place_[tour_[first]] = first;
      place_[tour_[last]] = last;
      first = wrapped(first + 1);
      last = wrapped(last - 1);
    }
  }

  // Moves a part behind the place `to`, outside of it; false if a rule is against it.
  bool move_part(const Part& part, int64_t to, bool is_straight) {
    if (is_row_) {
      if (to > part.place)
        return move_right(part, to, is_straight) || (to == nodes_ - 1 && move_left(part, 0, is_straight));
      return move_left(part, to + 1, is_straight);
    }
    // The part changes places with what lies between it and its new place: on the shorter side.
    const int64_t ahead = wrapped(to - part.place) + 1 - part.size, behind = nodes_ - part.size - ahead;
    const int64_t first = ahead <= behind ? part.place : wrapped(part.place - behind);
    const int64_t count = part.size + std::min(ahead, behind);
    const int64_t new_place = ahead <= behind ? wrapped(first + ahead) : first;
    turn(first, count);
    if (is_straight) turn(new_place, part.size);
    turn(ahead <= behind ? first : wrapped(first + part.size), count - part.size);
    add_up();
    return true;
  }

  // In a row: the part, and then what follows it up to the place `last`, change places.
  bool move_right(const Part& part, int64_t last, bool is_straight) {
    changed_.assign(tour_.begin() + part.place + part.size, tour_.begin() + last + 1);
    append(part, is_straight);
    return put(part.place, last);
  }

  bool move_left(const Part& part, int64_t first, bool is_straight) {
    changed_.clear();
    append(part, is_straight);
    changed_.insert(changed_.end(), tour_.begin() + first, tour_.begin() + part.place);
    return put(first, part.place + part.size - 1);
  }

  void append(const Part& part, bool is_straight) {
    for (int64_t i = 0; i < part.size; ++i) {
      changed_.push_back(tour_[part.place + (is_straight ? i : part.size - 1 - i)]);
    }
  }

  // In a row: puts `changed_` at the places first ... last if the rules allow it.
  bool put(int64_t first, int64_t last) {
    if (last >= n_ || !rules_->allow(tour_.data(), place_.data(), first, last, changed_.data())) return false;
    note(first, last - first + 1);
    for (int64_t place = first; place <= last; ++place) {
      tour_[place] = changed_[place - first];
      place_[tour_[place]] = place;
    }
    add_up();
    return true;
  }

  // Remembers that so many places from `first` on change, around the end if need be.
  void note(int64_t first, int64_t count) {
    if (notes_changes_) changes_.push_back({first, count});
  }

  const Distance distance_of_;
  const TourOptions options_;
  const int64_t n_, nodes_, near_count_;
  bool is_symmetric_, is_row_ = false;
  KeptRules* rules_ = nullptr;
  int64_t moves_left_ = 0;
  double length_ = 0, change_ = 0;  // of the tour, since the last place that set it; of the last move tried
  bool notes_changes_ = false;
  std::vector<std::pair<int64_t, int64_t>> changes_;
  double rounding_ = 0;                // how wrong a difference of `sums_` may be
  std::vector<int64_t> near_;          // (n, near_count)
  std::vector<int64_t> tour_, place_;  // node by place, place by node
  std::vector<double> sums_;           // of backward minus forward distances, by place; asymmetric only
  std::vector<int64_t> queue_, touched_, changed_;
  std::vector<char> is_queued_;
};

}  // namespace softrank

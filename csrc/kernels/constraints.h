// constraints: which items of a row may come next, such that some completion keeps every rule. Host only.
//
// The test depends on what rules there are (softrank_ext/constraints.py gives the reasons):
// - order pairs and groups: predecessors placed, an open group first;
// - with windows of places but no groups: deadlines counted;
// - with holes in the windows but neither pairs nor groups: alternating paths of a matching that is kept;
// - anything else: a search for a completion, cut by all of these, that remembers sets of placed items.
// Pairs must have no cycle and hold for whole groups, windows must be tightened along pairs and groups.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stop.h"

namespace softrank {

// The rules of a row, (items x items), (items x places) and (items); null where there are none of a kind.
struct RowRules {
  const bool *before, *allowed;
  const int64_t* group;
};

class RowConstraints {
 public:
  // Sets of placed items that searches of one row may visit between two calls of begin, and items and places that they
  // may look at, which takes seconds.
  static constexpr int64_t most_states = 200'000, most_looks = 2'000'000'000;
  static constexpr const char* too_hard =
      "constraints are too hard to check: the search passed 200000 states, or 2 * 10^9 items and places";

  // Starts a row of n items, of which those with a true mask are real. Further on items are numbers of real ones, in
  // index order. The rules and `stop` must outlive the row.
  void begin(const RowRules& rules, const bool* mask, int64_t n, Stop& stop) {
    rules_ = rules;
    stop_ = &stop;
    n_ = n;
    index_.clear();
    for (int64_t item = 0; item < n; ++item) {
      if (mask[item]) index_.push_back(item);
    }
    count_ = int64_t(index_.size());
    place_ = 0;
    open_group_ = none;
    is_placed_.assign(count_, 0);
    is_next_ = std::make_unique<bool[]>(count_);
    begin_pairs();
    begin_groups();
    begin_windows();
    if (!has_windows_) {
      test_ = Test::none;
    } else if (!has_groups_ && !has_holes_) {
      test_ = Test::deadlines;
    } else if (!has_groups_ && !has_pairs_) {
      test_ = Test::matching;
    } else {
      test_ = Test::search;
    }
    is_matched_ = !has_windows_ || match_all();
    if (test_ == Test::search) begin_search();
  }

  // Which items may come next, a bool per real item; null if the search passed its limit, or is to stop.
  const bool* next() {
    std::vector<int64_t> candidates;
    find_candidates(candidates);
    if (test_ == Test::search) {
      std::vector<int64_t> completing;
      std::vector<char> answers(members_.size(), unknown);  // items of a kind have one answer
      for (const int64_t item : candidates) {
        char& answer = answers[alike_[item]];
        if (answer == unknown) answer = completes_with(item) ? 1 : 0;
        if (answer == 1) completing.push_back(item);
        if (is_over()) return nullptr;
      }
      candidates.swap(completing);
    }
    if ((*stop_)()) return nullptr;  // a path that was not searched to its end has left something out
    std::fill_n(is_next_.get(), count_, false);
    for (const int64_t item : candidates) is_next_[item] = true;
    return is_next_.get();
  }

  // Puts an item, one of those that may come next, at the next place.
  void place(int64_t item) {
    is_placed_[item] = 1;
    if (has_pairs_) {
      for (int64_t other = 0; other < count_; ++other) waiting_[other] -= is_before(item, other);
    }
    if (has_groups_ && group_[item] != none) {
      open_group_ = --group_left_[group_[item]] > 0 ? group_[item] : none;
    }
    if (has_windows_) --due_[deadline_[item]];
    if (is_matched_ && (test_ == Test::matching || test_ == Test::search)) rematch(item);
    if (test_ == Test::search) {
      const int64_t alike = alike_[item];
      flip(members_[alike][placed_alike_[alike]++]);
    }
    ++place_;
  }

 private:
  enum class Test { none, deadlines, matching, search };
  static constexpr int64_t none = -1;
  static constexpr char unknown = 2;

  bool is_before(int64_t a, int64_t b) const { return rules_.before[index_[a] * n_ + index_[b]]; }
  bool is_allowed(int64_t item, int64_t place) const { return rules_.allowed[index_[item] * n_ + place]; }

  void begin_pairs() {
    waiting_.assign(count_, 0);
    has_pairs_ = false;
    if (rules_.before == nullptr) return;
    for (int64_t a = 0; a < count_; ++a) {
      for (int64_t b = 0; b < count_; ++b) waiting_[b] += is_before(a, b);
    }
    has_pairs_ = std::any_of(waiting_.begin(), waiting_.end(), [](int64_t number) { return number > 0; });
  }

  void begin_groups() {
    has_groups_ = false;
    if (rules_.group == nullptr) return;
    group_.assign(count_, none);
    group_left_.assign(count_, 0);
    std::map<int64_t, int64_t> numbers;
    for (int64_t item = 0; item < count_; ++item) {
      const int64_t given = rules_.group[index_[item]];
      if (given < 0) continue;
      group_[item] = numbers.try_emplace(given, int64_t(numbers.size())).first->second;
      ++group_left_[group_[item]];
    }
    has_groups_ = std::any_of(group_left_.begin(), group_left_.end(), [](int64_t size) { return size > 1; });
  }

  void begin_windows() {
    has_windows_ = has_holes_ = false;
    if (rules_.allowed == nullptr) return;
    deadline_.assign(count_, count_ - 1);
    due_.assign(count_, 0);
    for (int64_t item = 0; item < count_; ++item) {
      int64_t first = count_, last = 0, open = 0;
      for (int64_t place = 0; place < count_; ++place) {
        if (!is_allowed(item, place)) continue;
        first = std::min(first, place);
        last = place;
        ++open;
      }
      has_windows_ |= open < count_;
      has_holes_ |= open != last - first + 1;
      deadline_[item] = last;
      ++due_[last];
    }
  }

  // Items that break no rule at once and pass the tests that are quick; in search the earliest deadline comes first.
  void find_candidates(std::vector<int64_t>& candidates) {
    if (place_ == count_ || !is_matched_) return;
    const int64_t latest = has_windows_ ? first_tight_deadline() : count_ - 1;
    if (test_ == Test::matching || test_ == Test::search) reach();
    for (int64_t item = 0; item < count_; ++item) {
      if (is_placed_[item] || waiting_[item] > 0) continue;
      if (open_group_ != none && group_[item] != open_group_) continue;
      if (has_windows_ && (!is_allowed(item, place_) || deadline_[item] > latest)) continue;
      if ((test_ == Test::matching || test_ == Test::search) && !is_reached_[item]) continue;
      candidates.push_back(item);
    }
    if (test_ == Test::search) {
      std::stable_sort(candidates.begin(), candidates.end(),
                       [&](int64_t a, int64_t b) { return deadline_[a] < deadline_[b]; });
    }
  }

  // The first place up to which as many items are due as there are places: the next item must be one of them, or one
  // of them will be late. -1 if items are late already.
  int64_t first_tight_deadline() const {
    int64_t due = 0;
    for (int64_t place = 0; place < place_; ++place) due += due_[place];
    if (due > 0) return none;
    int64_t tight = count_;
    for (int64_t place = place_; place < count_; ++place) {
      due += due_[place];
      if (due > place - place_ + 1) return none;
      if (due == place - place_ + 1) tight = std::min(tight, place);
    }
    return tight;
  }

  // A perfect matching of items and places by augmenting paths; false if there is none.
  bool match_all() {
    place_of_.assign(count_, none);
    item_at_.assign(count_, none);
    is_reached_.assign(count_, 0);
    came_from_.assign(count_, none);
    for (int64_t item = 0; item < count_; ++item) {
      const int64_t end = search_path(item, none);
      if (end == none) return false;
      augment(end);
    }
    return true;
  }

  // Breadth first from an item over alternating paths: place by place that it may have, then whose place that is.
  // Returns a free place, or none; `is_reached_` holds the items met, `came_from_` the item that a place was met from.
  // The place `closed` is not entered.
  int64_t search_path(int64_t start, int64_t closed) {
    std::fill(is_reached_.begin(), is_reached_.end(), 0);
    std::fill(came_from_.begin(), came_from_.end(), none);
    queue_.assign(1, start);
    is_reached_[start] = 1;
    // Places not met yet, in order: where most are allowed, few are looked at twice.
    unmet_.clear();
    for (int64_t place = place_; place < count_; ++place) {
      if (place != closed) unmet_.push_back(place);
    }
    for (size_t at = 0; at < queue_.size() && !unmet_.empty() && !(*stop_)(); ++at) {
      const int64_t item = queue_[at];
      looks_ += int64_t(unmet_.size());
      size_t kept = 0;
      for (size_t i = 0; i < unmet_.size(); ++i) {
        const int64_t place = unmet_[i], holder = item_at_[place];
        if (holder == item || !is_allowed(item, place)) {
          unmet_[kept++] = place;
          continue;
        }
        came_from_[place] = item;
        if (holder == none) return place;
        if (!is_reached_[holder]) {
          is_reached_[holder] = 1;
          queue_.push_back(holder);
        }
      }
      unmet_.resize(kept);
    }
    return none;
  }

  // Hands places on along the path that ends at a free place.
  void augment(int64_t place) {
    while (place != none) {
      const int64_t item = came_from_[place], left = place_of_[item];
      place_of_[item] = place;
      item_at_[place] = item;
      place = left;
    }
  }

  // Marks the items that may be matched to the next place: its own, and those whose place its own can take over.
  void reach() { search_path(item_at_[place_], place_); }

  // Makes the item that now stands at the next place matched to it.
  void rematch(int64_t item) {
    const int64_t own = item_at_[place_];
    if (own == item) return;
    // The item leaves its place; the one that held the next place gets there along an alternating path.
    const int64_t freed = place_of_[item];
    item_at_[freed] = none;
    place_of_[own] = none;
    place_of_[item] = place_;
    item_at_[place_] = item;
    const int64_t end = search_path(own, place_);
    is_matched_ = end != none;  // always, for an item that may come next
    if (is_matched_) augment(end);
  }

  // Items that all rules treat alike are one kind: a set of placed items counts only how many there are of each.
  void begin_search() {
    known_.clear();
    states_ = looks_ = 0;
    key_.assign((count_ + 7) / 8, '\0');
    alike_.assign(count_, 0);
    members_.clear();
    std::map<std::string, int64_t> kinds;
    for (int64_t item = 0; item < count_; ++item) {
      std::string rules = has_groups_ ? std::to_string(group_[item]) : std::string();
      rules.push_back(':');
      for (int64_t other = 0; other < count_; ++other) {
        rules.push_back(char('0' + is_allowed(item, other) +
                             (has_pairs_ ? 2 * is_before(item, other) + 4 * is_before(other, item) : 0)));
      }
      alike_[item] = kinds.try_emplace(std::move(rules), int64_t(kinds.size())).first->second;
      if (alike_[item] == int64_t(members_.size())) members_.emplace_back();
      members_[alike_[item]].push_back(item);
    }
    placed_alike_.assign(members_.size(), 0);
  }

  void flip(int64_t bit) { key_[bit / 8] = char(key_[bit / 8] ^ (1 << (bit % 8))); }

  bool is_over() { return states_ > most_states || looks_ > most_looks || (*stop_)(); }

  // Whether a completion exists once the item stands at the next place.
  bool completes_with(int64_t item) {
    looks_ += 4 * count_;
    const std::vector<int64_t> place_of = place_of_, item_at = item_at_;
    const int64_t open_group = open_group_;
    place(item);
    const bool does = completes();
    --place_;
    const int64_t alike = alike_[item];
    flip(members_[alike][--placed_alike_[alike]]);
    ++due_[deadline_[item]];
    if (has_groups_ && group_[item] != none) ++group_left_[group_[item]];
    open_group_ = open_group;
    if (has_pairs_) {
      for (int64_t other = 0; other < count_; ++other) waiting_[other] += is_before(item, other);
    }
    is_placed_[item] = 0;
    place_of_ = place_of;
    item_at_ = item_at;
    return does;
  }

  bool completes() {
    if (place_ == count_) return true;
    const auto found = known_.find(key_);
    if (found != known_.end()) return found->second;
    ++states_;
    looks_ += count_;
    if (is_over()) return false;
    std::vector<int64_t> candidates;
    find_candidates(candidates);
    std::vector<char> is_kind_tried(members_.size(), 0);
    bool does = false;
    for (const int64_t item : candidates) {
      if (is_kind_tried[alike_[item]]) continue;
      is_kind_tried[alike_[item]] = 1;
      does = completes_with(item);
      if (does || is_over()) break;
    }
    if (does || !is_over()) known_.emplace(key_, does);
    return does;
  }

  RowRules rules_;
  Stop* stop_;
  int64_t n_, count_, place_, open_group_, states_, looks_ = 0;
  Test test_;
  bool has_pairs_, has_groups_, has_windows_, has_holes_, is_matched_;
  std::vector<int64_t> index_;                   // real items by number
  std::vector<char> is_placed_;                  // by item
  std::unique_ptr<bool[]> is_next_;              // by item: what `next` found
  std::vector<int64_t> waiting_;                 // predecessors not placed yet, by item
  std::vector<int64_t> group_, group_left_;      // group by item, -1 for none; items not placed yet by group
  std::vector<int64_t> deadline_, due_;          // last allowed place by item; items not placed yet by deadline
  std::vector<int64_t> place_of_, item_at_;      // the matching
  std::vector<char> is_reached_;                 // of the last search for a path: items met
  std::vector<int64_t> came_from_, queue_;       // of the last search for a path: by place; items in turn
  std::vector<int64_t> unmet_;                   // of the last search for a path: places left, in order
  std::vector<int64_t> alike_, placed_alike_;    // kind by item; placed items by kind
  std::vector<std::vector<int64_t>> members_;    // items by kind
  std::string key_;                              // a bit per item: the first ones of each kind, as many as placed
  std::unordered_map<std::string, bool> known_;  // whether sets of placed items can be completed
};

}  // namespace softrank

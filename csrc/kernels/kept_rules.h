// Whether an order that keeps its rules still keeps them after a part of it was rearranged.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "constraints.h"

namespace softrank {

class KeptRules {
 public:
  // rules: over n items, null where there is no rule of that kind. keeps_first: nothing moves to or from place 0.
  KeptRules(const RowRules& rules, bool keeps_first, int64_t n)
      : rules_(rules), n_(n), keeps_first_(keeps_first), after_(n), new_place_(n) {
    if (rules_.allowed != nullptr && n > 1 && only_place_0_is_closed()) {
      rules_.allowed = nullptr;
      keeps_first_ = true;
    }
    if (rules.before == nullptr) return;
    for (int64_t a = 0; a < n; ++a) {
      for (int64_t b = 0; b < n; ++b) {
        if (rules.before[a * n + b]) after_[a].push_back(b);
      }
    }
  }

  bool keeps_first() const { return keeps_first_; }
  // Whether there are rules beyond that.
  bool has_rules() const { return rules_.before != nullptr || rules_.allowed != nullptr || rules_.group != nullptr; }

  // Whether order (n), which keeps the rules, keeps them with part[0 .. last - first] at the places first ... last.
  // place (n): where the items of order are. The part holds the items that stand there now.
  bool allow(const int64_t* order, const int64_t* place, int64_t first, int64_t last, const int64_t* part) {
    if (keeps_first_ && first == 0) return false;
    if (rules_.allowed != nullptr) {
      for (int64_t at = first; at <= last; ++at) {
        if (!rules_.allowed[part[at - first] * n_ + at]) return false;
      }
    }
    if (rules_.before != nullptr) {
      for (int64_t at = first; at <= last; ++at) new_place_[part[at - first]] = at;
      for (int64_t at = first; at <= last; ++at) {
        for (const int64_t later : after_[part[at - first]]) {
          // Only pairs inside the part can change sides.
          if (place[later] >= first && place[later] <= last && new_place_[later] < at) return false;
        }
      }
    }
    return rules_.group == nullptr || allow_groups(order, first, last, part);
  }

  // First and last place at which an item may be put into a sequence of others that keeps `before`, which must hold all
  // that follows from it too: then there is such a place. Other rules are not looked at.
  std::pair<int64_t, int64_t> places_of(int64_t item, const int64_t* sequence, int64_t count) const {
    int64_t first = 0, last = count;
    if (rules_.before == nullptr) return {first, last};
    for (int64_t at = 0; at < count; ++at) {
      if (rules_.before[sequence[at] * n_ + item]) first = at + 1;
      if (rules_.before[item * n_ + sequence[count - 1 - at]]) last = count - 1 - at;
    }
    return {first, last};
  }

 private:
  // Whether one item is pinned to place 0 and no later place is closed to any other item.
  bool only_place_0_is_closed() const {
    int64_t pinned = 0;
    for (int64_t item = 0; item < n_; ++item) {
      const bool* allowed = rules_.allowed + item * n_;
      const int64_t later = std::count(allowed + 1, allowed + n_, true);
      pinned += later == 0;
      if (later != 0 && later != n_ - 1) return false;
    }
    return pinned == 1;
  }

  // Whether the members of each group stand together.
  bool allow_groups(const int64_t* order, int64_t first, int64_t last, const int64_t* part) {
    is_closed_.assign(n_, 0);
    int64_t open = -1;
    for (int64_t at = 0; at < n_; ++at) {
      const int64_t group = rules_.group[at < first || at > last ? order[at] : part[at - first]];
      if (group == open) continue;
      if (group >= 0 && is_closed_[group]) return false;
      if (open >= 0) is_closed_[open] = 1;
      open = group;
    }
    return true;
  }

  RowRules rules_;
  const int64_t n_;
  bool keeps_first_;
  std::vector<std::vector<int64_t>> after_;
  std::vector<int64_t> new_place_;
  std::vector<char> is_closed_;
};

}  // namespace softrank

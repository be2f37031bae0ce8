// Searches over orders for the costs of costs.h: local search by moves, building by insertion, iterated greedy.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kept_rules.h"

namespace softrank {

enum class MoveKind { insert, swap, reverse };

struct GreedyOptions {
  int64_t rounds;      // at most; negative for no limit
  double seconds;      // at most; negative for no limit
  int64_t removed;     // items taken out in a round
  double temperature;  // dearer by this much is accepted with probability 1 / e
};

template <typename Problem>
class OrderSearch {
 public:
  OrderSearch(const double* items, int64_t n, int64_t width)
      : whole_(items, n, width), rest_(items, n, width), n_(n), costs_(n + 1) {}

  double cost_of(const int64_t* order) {
    whole_.begin(order, n_);
    return whole_.cost();
  }

  // Makes moves that help, kinds in turn, until none does or most_moves were made (negative for no limit).
  template <typename Stop>
  void improve(int64_t* order, const std::vector<MoveKind>& kinds, int64_t most_moves, KeptRules& rules, Stop& stop) {
    order_.assign(order, order + n_);
    rules_ = rules.has_rules() || rules.keeps_first() ? &rules : nullptr;
    moves_left_ = most_moves;
    cost_ = cost_of(order);
    descend(kinds, stop, nullptr);
    std::copy(order_.begin(), order_.end(), order);
  }

  // Builds an order: items one by one, in the order given, each where it is cheapest, the first such place. Of the
  // rules only `before` counts here, which must hold all that follows from it too.
  void build(int64_t* order, KeptRules& rules) {
    rules_ = &rules;
    std::vector<int64_t> built;
    for (int64_t i = 0; i < n_; ++i) put_cheapest(built, order[i]);
    std::copy(built.begin(), built.end(), order);
  }

  // R. Ruiz, T. Stuetzle, "A simple and effective iterated greedy algorithm for the permutation flowshop scheduling
  // problem", EJOR 177, 2007: take some items out, put each back where it is cheapest, insert until nothing helps,
  // accept as simulated annealing at one temperature does. The order keeps the rules to begin with; see `build`.
  template <typename Stop>
  void iterated_greedy(int64_t* order, const GreedyOptions& options, uint64_t seed, KeptRules& rules, Stop& asked) {
    const auto started = std::chrono::steady_clock::now();
    auto stop = [&] {  // also within a round, which takes seconds for thousands of items
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started;
      return asked() || (options.seconds >= 0 && passed.count() >= options.seconds);
    };
    std::mt19937_64 random(seed);
    rules_ = rules.has_rules() ? &rules : nullptr;
    moves_left_ = -1;
    order_.assign(order, order + n_);
    cost_ = cost_of(order);
    descend({MoveKind::insert}, stop, &random);
    std::vector<int64_t> current = order_, best = order_, removed;
    double current_cost = cost_, best_cost = cost_;
    for (int64_t round = 0; round != options.rounds && !stop(); ++round) {
      order_ = current;
      removed.clear();
      for (int64_t i = std::min(options.removed, n_); i > 0; --i) {
        const auto at = order_.begin() + int64_t(random() % order_.size());
        removed.push_back(*at);
        order_.erase(at);
      }
      for (const int64_t item : removed) cost_ = put_cheapest(order_, item);
      descend({MoveKind::insert}, stop, &random);
      const double uniform = double(random() >> 11) * 0x1p-53;
      if (cost_ <= current_cost || uniform < std::exp((current_cost - cost_) / options.temperature)) {
        current = order_;
        current_cost = cost_;
      }
      if (is_cheaper(cost_, best_cost)) {
        best = order_;
        best_cost = cost_;
      }
    }
    std::copy(best.begin(), best.end(), order);
  }

 private:
  // Rounding must not count as an improvement, or two equal orders could follow each other for ever.
  bool is_cheaper(double cost, double than) const { return cost < than - 1e-12 * std::abs(than); }

  // Puts an item where it is cheapest; returns the cost.
  double put_cheapest(std::vector<int64_t>& sequence, int64_t item) {
    const int64_t count = int64_t(sequence.size());
    rest_.begin(sequence.data(), count);
    rest_.place(item, costs_.data());
    const auto [first, last] =
        rules_ == nullptr ? std::pair<int64_t, int64_t>(0, count) : rules_->places_of(item, sequence.data(), count);
    int64_t at = first;
    for (int64_t other = first + 1; other <= last; ++other) {
      if (is_cheaper(costs_[other], costs_[at])) at = other;
    }
    sequence.insert(sequence.begin() + at, item);
    return costs_[at];
  }

  // Kinds in turn; after a kind that helped the first comes again. With random numbers, items are tried in random
  // order.
  template <typename Stop>
  void descend(const std::vector<MoveKind>& kinds, Stop& stop, std::mt19937_64* random) {
    for (size_t kind = 0; kind < kinds.size() && moves_left_ != 0;) {
      const bool has_helped =
          kinds[kind] == MoveKind::insert ? insert_all(stop, random) : exchange_all(kinds[kind], stop);
      if (stop()) return;
      kind = has_helped ? 0 : kind + 1;
    }
  }

  // Tries every item at all places, and moves it to the cheapest if that helps.
  template <typename Stop>
  bool insert_all(Stop& stop, std::mt19937_64* random) {
    bool has_helped = false;
    items_ = order_;
    for (size_t left = random == nullptr ? 0 : items_.size(); left > 1; --left) {
      std::swap(items_[left - 1], items_[(*random)() % left]);
    }
    for (const int64_t item : items_) {
      if (moves_left_ == 0 || stop()) break;
      const int64_t from = std::find(order_.begin(), order_.end(), item) - order_.begin();
      others_.assign(order_.begin(), order_.end());
      others_.erase(others_.begin() + from);
      rest_.begin(others_.data(), n_ - 1);
      rest_.place(item, costs_.data());
      int64_t best = from;
      double best_cost = cost_;
      for (int64_t to = 0; to < n_; ++to) {
        if (is_cheaper(costs_[to], best_cost) && to != from && (rules_ == nullptr || may_insert(from, to))) {
          best = to;
          best_cost = costs_[to];
        }
      }
      if (best == from) continue;
      order_.erase(order_.begin() + from);
      order_.insert(order_.begin() + best, item);
      has_moved(best_cost);
      has_helped = true;
    }
    return has_helped;
  }

  bool may_insert(int64_t from, int64_t to) {
    const int64_t first = std::min(from, to), last = std::max(from, to);
    part_.assign(order_.begin() + first, order_.begin() + last + 1);
    std::rotate(part_.begin(), from < to ? part_.begin() + 1 : part_.end() - 1, part_.end());
    return allows(first, last);
  }

  // Swaps or reversals, the first that helps.
  template <typename Stop>
  bool exchange_all(MoveKind kind, Stop& stop) {
    bool has_helped = false;
    whole_.begin(order_.data(), n_);
    for (int64_t first = 0; first + 1 < n_; ++first) {
      for (int64_t last = first + 1; last < n_; ++last) {
        if (moves_left_ == 0 || stop()) return has_helped;
        part_.assign(order_.begin() + first, order_.begin() + last + 1);
        if (kind == MoveKind::swap) {
          std::swap(part_.front(), part_.back());
        } else {
          std::reverse(part_.begin(), part_.end());
        }
        const double cost = whole_.part_cost(first, last, part_.data());
        if (!is_cheaper(cost, cost_) || (rules_ != nullptr && !allows(first, last))) continue;
        std::copy(part_.begin(), part_.end(), order_.begin() + first);
        whole_.begin(order_.data(), n_);
        has_moved(cost);
        has_helped = true;
      }
    }
    return has_helped;
  }

  bool allows(int64_t first, int64_t last) {
    place_.resize(n_);
    for (int64_t place = 0; place < n_; ++place) place_[order_[place]] = place;
    return rules_->allow(order_.data(), place_.data(), first, last, part_.data());
  }

  void has_moved(double cost) {
    cost_ = cost;
    --moves_left_;
  }

  Problem whole_, rest_;  // of the order, and of a part of it
  const int64_t n_;
  KeptRules* rules_ = nullptr;
  int64_t moves_left_ = 0;
  double cost_ = 0;
  std::vector<double> costs_;
  std::vector<int64_t> order_, items_, others_, part_, place_;
};

}  // namespace softrank

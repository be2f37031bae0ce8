// What an order costs, for searches that try many orders of one instance: a class per cost, with
// - begin(sequence, count): the sequence of items, all or some of the instance's, that the other calls are about;
// - cost(): of the sequence;
// - place(item, costs): costs[at], at = 0 ... count, of the sequence with one more item at place `at`, all at once;
// - part_cost(first, last, part): of the sequence with other items, part[0 .. last - first], at places first ... last.
// softrank_ext/costs has the same costs in plain torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace softrank {

// Processing times (n, width) of a flow shop without the machines at the end that no job needs.
class MachineTimes {
 public:
  MachineTimes(const double* times, int64_t n, int64_t width) {
    for (int64_t i = 0; i < n * width; ++i) {
      if (times[i] != 0) machines = std::max(machines, i % width + 1);
    }
    times_.resize(n * machines);
    for (int64_t job = 0; job < n; ++job) std::copy_n(times + job * width, machines, times_.begin() + job * machines);
  }
  const double* operator[](int64_t job) const { return &times_[job * machines]; }
  // Ends of a job on all machines, given the ends of the job before it: `ends` becomes the new ones.
  void add(int64_t job, double* ends) const {
    const double* own = (*this)[job];
    double end = 0;
    for (int64_t k = 0; k < machines; ++k) ends[k] = end = std::max(end, ends[k]) + own[k];
  }

  int64_t machines = 1;

 private:
  std::vector<double> times_;
};

// Flow shop: when the last job ends on the last machine.
class Makespan {
 public:
  Makespan(const double* times, int64_t n, int64_t width)
      : times_(times, n, width), m_(times_.machines), heads_((n + 1) * m_), tails_((n + 1) * m_), ends_(m_) {}

  void begin(const int64_t* sequence, int64_t count) {
    count_ = count;
    std::fill_n(heads_.begin(), m_, 0.0);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(&heads_[i * m_], m_, &heads_[(i + 1) * m_]);
      times_.add(sequence[i], &heads_[(i + 1) * m_]);
    }
    // tails_[i]: from the start of the i-th job on a machine to the end of all, with only the jobs from i on.
    std::fill_n(&tails_[count * m_], m_, 0.0);
    for (int64_t i = count - 1; i >= 0; --i) {
      const double *own = times_[sequence[i]], *next = &tails_[(i + 1) * m_];
      double tail = 0;
      for (int64_t k = m_ - 1; k >= 0; --k) tails_[i * m_ + k] = tail = std::max(tail, next[k]) + own[k];
    }
  }

  double cost() const { return heads_[count_ * m_ + m_ - 1]; }

  // E. Taillard, "Some efficient heuristic methods for the flow shop sequencing problem", EJOR 47, 1990.
  void place(int64_t item, double* costs) const {
    const double* own = times_[item];
    for (int64_t at = 0; at <= count_; ++at) {
      const double *head = &heads_[at * m_], *tail = &tails_[at * m_];
      double end = 0, longest = 0;
      for (int64_t k = 0; k < m_; ++k) {
        end = std::max(end, head[k]) + own[k];
        longest = std::max(longest, end + tail[k]);
      }
      costs[at] = longest;
    }
  }

  double part_cost(int64_t first, int64_t last, const int64_t* part) {
    std::copy_n(&heads_[first * m_], m_, ends_.begin());
    for (int64_t at = first; at <= last; ++at) times_.add(part[at - first], ends_.data());
    double longest = 0;
    for (int64_t k = 0; k < m_; ++k) longest = std::max(longest, ends_[k] + tails_[(last + 1) * m_ + k]);
    return longest;
  }

 private:
  const MachineTimes times_;
  const int64_t m_;
  int64_t count_ = 0;
  std::vector<double> heads_, tails_, ends_;
};

// Flow shop: the sum of all jobs' ends on the last machine.
class TotalFlowTime {
 public:
  TotalFlowTime(const double* times, int64_t n, int64_t width)
      : times_(times, n, width), m_(times_.machines), heads_((n + 1) * m_), sums_(n + 1), ends_(m_) {}

  void begin(const int64_t* sequence, int64_t count) {
    count_ = count;
    sequence_.assign(sequence, sequence + count);
    std::fill_n(heads_.begin(), m_, 0.0);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(&heads_[i * m_], m_, &heads_[(i + 1) * m_]);
      times_.add(sequence[i], &heads_[(i + 1) * m_]);
      sums_[i + 1] = sums_[i] + heads_[(i + 2) * m_ - 1];
    }
  }

  double cost() const { return sums_[count_]; }

  void place(int64_t item, double* costs) {
    for (int64_t at = 0; at <= count_; ++at) costs[at] = from(at, at, &item, 1);
  }

  double part_cost(int64_t first, int64_t last, const int64_t* part) {
    return from(first, last + 1, part, last - first + 1);
  }

 private:
  // The jobs before `first`, then `count` others, then the jobs from `next` on.
  double from(int64_t first, int64_t next, const int64_t* others, int64_t count) {
    std::copy_n(&heads_[first * m_], m_, ends_.begin());
    double sum = sums_[first];
    for (int64_t i = 0; i < count; ++i) times_.add(others[i], ends_.data()), sum += ends_[m_ - 1];
    for (int64_t i = next; i < count_; ++i) times_.add(sequence_[i], ends_.data()), sum += ends_[m_ - 1];
    return sum;
  }

  const MachineTimes times_;
  const int64_t m_;
  int64_t count_ = 0;
  std::vector<double> heads_, sums_, ends_;
  std::vector<int64_t> sequence_;
};

// One machine: the sum of weight times how late a job ends. Jobs are (n, 3): processing time, weight, due date.
class WeightedTardiness {
 public:
  WeightedTardiness(const double* jobs, int64_t n, int64_t width)
      : jobs_(jobs), width_(width), starts_(n + 1), sums_(n + 1) {}

  void begin(const int64_t* sequence, int64_t count) {
    count_ = count;
    sequence_.assign(sequence, sequence + count);
    for (int64_t i = 0; i < count; ++i) {
      starts_[i + 1] = starts_[i] + time_of(sequence[i]);
      sums_[i + 1] = sums_[i] + lateness(sequence[i], starts_[i + 1]);
    }
  }

  double cost() const { return sums_[count_]; }

  // All jobs behind the new one are later by its time, wherever it stands: their costs are added up from the end.
  void place(int64_t item, double* costs) const {
    const double time = time_of(item);
    double behind = 0;
    for (int64_t at = count_; at >= 0; --at) {
      costs[at] = sums_[at] + lateness(item, starts_[at] + time) + behind;
      if (at > 0) behind += lateness(sequence_[at - 1], starts_[at] + time);
    }
  }

  double part_cost(int64_t first, int64_t last, const int64_t* part) const {
    double end = starts_[first], sum = sums_[first];
    for (int64_t at = first; at <= last; ++at) {
      end += time_of(part[at - first]);
      sum += lateness(part[at - first], end);
    }
    return sum + (sums_[count_] - sums_[last + 1]);
  }

 private:
  double time_of(int64_t job) const { return jobs_[job * width_]; }
  double lateness(int64_t job, double end) const {
    return jobs_[job * width_ + 1] * std::max(end - jobs_[job * width_ + 2], 0.0);
  }

  const double* jobs_;
  const int64_t width_;
  int64_t count_ = 0;
  std::vector<double> starts_, sums_;
  std::vector<int64_t> sequence_;
};

// The sum of weights (n, n) from later to earlier items.
class LinearOrdering {
 public:
  LinearOrdering(const double* weights, int64_t n, int64_t) : weights_(weights), n_(n) {}

  void begin(const int64_t* sequence, int64_t count) {
    sequence_.assign(sequence, sequence + count);
    cost_ = backward(sequence, count);
  }

  double cost() const { return cost_; }

  void place(int64_t item, double* costs) const {
    const int64_t count = int64_t(sequence_.size());
    double sum = cost_;
    for (const int64_t other : sequence_) sum += weight(other, item);
    costs[0] = sum;
    for (int64_t at = 0; at < count; ++at) {
      sum += weight(item, sequence_[at]) - weight(sequence_[at], item);
      costs[at + 1] = sum;
    }
  }

  double part_cost(int64_t first, int64_t last, const int64_t* part) const {
    const int64_t count = last - first + 1;
    return cost_ + (backward(part, count) - backward(&sequence_[first], count));
  }

 private:
  double weight(int64_t from, int64_t to) const { return weights_[from * n_ + to]; }
  double backward(const int64_t* sequence, int64_t count) const {
    double sum = 0;
    for (int64_t later = 1; later < count; ++later) {
      for (int64_t earlier = 0; earlier < later; ++earlier) sum += weight(sequence[later], sequence[earlier]);
    }
    return sum;
  }

  const double* weights_;
  const int64_t n_;
  double cost_ = 0;
  std::vector<int64_t> sequence_;
};

}  // namespace softrank

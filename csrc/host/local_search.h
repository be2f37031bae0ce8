// Local search over batches of numpy arrays: checks, then rows in parallel.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../kernels/costs.h"
#include "../kernels/order_search.h"
#include "../kernels/tour_bound.h"
#include "../kernels/tour_iterations.h"
#include "../kernels/tour_rebuild.h"
#include "rows_in_parallel.h"

namespace softrank {

namespace py = pybind11;
using Numbers = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Orders = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;
using Claims = py::array_t<bool, py::array::c_style | py::array::forcecast>;

// The rules of a batch, as `softrank_ext.constraints.Rules` has them; arrays of one row serve all rows.
struct BatchRules {
  std::optional<Claims> before, allowed;
  std::optional<Orders> group;
  bool keeps_first;

  void check(int64_t rows, int64_t n) const {
    check(before, "before", rows, n * n);
    check(allowed, "allowed", rows, n * n);
    check(group, "group", rows, n);
  }
  KeptRules row(int64_t row, int64_t n) const {
    return KeptRules({at(before, row), at(allowed, row), at(group, row)}, keeps_first, n);
  }
  bool has_places() const { return allowed.has_value(); }
  const bool* pairs(int64_t row) const { return at(before, row); }

 private:
  template <typename Array>
  static void check(const std::optional<Array>& array, const char* name, int64_t rows, int64_t size) {
    if (array && array->size() != size * (array->shape(0) == 1 ? 1 : rows)) {
      throw py::value_error(std::string(name) + " does not fit order");
    }
  }
  template <typename Array>
  static auto at(const std::optional<Array>& array, int64_t row) -> decltype(array->data()) {
    if (!array) return nullptr;
    return array->data() + (array->shape(0) == 1 ? 0 : row * (array->size() / array->shape(0)));
  }
};

inline bool has(const std::vector<std::string>& moves, const char* kind) {
  return std::find(moves.begin(), moves.end(), kind) != moves.end();
}

// Checks that `items` is (rows or 1, n, width) and `order` (rows, n) of 0 ... n - 1, and returns a copy of order.
inline Orders checked_copy(const Numbers& items, const Orders& order) {
  if (order.ndim() != 2 || items.ndim() != 3 || items.shape(1) != order.shape(1) ||
      (items.shape(0) != 1 && items.shape(0) != order.shape(0))) {
    throw py::value_error("items must be (B, N, F) and order (B, N)");
  }
  const int64_t rows = order.shape(0), n = order.shape(1);
  Orders copy({rows, n});
  std::copy_n(order.data(), rows * n, copy.mutable_data());
  for (int64_t i = 0; i < rows * n; ++i) {
    if (order.data()[i] < 0 || order.data()[i] >= n) throw py::value_error("order must hold items 0 to N - 1");
  }
  return copy;
}

// Tours (B, N) made shorter. items: points (B, N, D), or distances (B, N, N) if is_matrix.
inline Orders search_tours(const Numbers& items, const Orders& order, bool is_matrix, bool is_closed,
                           const std::vector<std::string>& moves, int64_t neighbours, int64_t most_moves,
                           std::optional<Claims> before, std::optional<Claims> allowed, std::optional<Orders> group,
                           bool keeps_first, int64_t threads) {
  Orders shorter = checked_copy(items, order);
  const int64_t rows = order.shape(0), n = order.shape(1), width = items.shape(2);
  if (is_matrix && width != n) throw py::value_error("items must be (B, N, N)");
  const BatchRules rules{std::move(before), std::move(allowed), std::move(group), keeps_first};
  rules.check(rows, n);
  const TourOptions options{is_closed, has(moves, "insert"), has(moves, "swap"), has(moves, "reverse"), neighbours,
                            most_moves};
  const double* from = items.data();
  const int64_t row_size = items.shape(0) == 1 ? 0 : n * width;
  int64_t* to = shorter.mutable_data();
  const auto run = [&](auto* none) {
    using Distance = std::remove_pointer_t<decltype(none)>;
    rows_in_parallel(rows, threads, [&] {
      return [&, search = std::unique_ptr<TourSearch<Distance>>(), last = static_cast<const double*>(nullptr)](
                 int64_t row, Stop& stop) mutable {
        const double* own = from + row * row_size;
        // Rows of one instance, as samples are, share its lists of neighbours.
        if (last == nullptr || (last != own && std::memcmp(last, own, n * width * sizeof(double)) != 0)) {
          search = std::make_unique<TourSearch<Distance>>(Distance(own, n, width), n, options);
        }
        last = own;
        KeptRules kept = rules.row(row, n);
        search->improve(to + row * n, kept, stop);
      };
    });
  };
  if (is_matrix) {
    run(static_cast<MatrixDistance*>(nullptr));
  } else {
    run(static_cast<PointDistance*>(nullptr));
  }
  return shorter;
}

// Searches that go on from tours (B, N) as long as they may: by exchanges and local search, or, if rebuilds, by taking
// out and putting back, under pairs and fixed ends alone. Row r has the random numbers of seed + r. Returns the tours
// kept (B, kept, N), how many there are (B,), the rounds run (B,), and whether Ctrl-C ended it.
inline py::tuple iterate_tours(const Numbers& items, const Orders& order, bool is_matrix, bool is_closed, bool rebuilds,
                               int64_t neighbours, const IterationOptions& options, std::optional<Claims> before,
                               std::optional<Claims> allowed, std::optional<Orders> group, bool keeps_first,
                               bool keeps_last, uint64_t seed, int64_t threads) {
  const Orders starts = checked_copy(items, order);
  const int64_t rows = order.shape(0), n = order.shape(1), width = items.shape(2);
  if (is_matrix && width != n) throw py::value_error("items must be (B, N, N)");
  if (rebuilds && (allowed || group)) throw py::value_error("rebuilds keep pairs and fixed ends alone");
  const BatchRules rules{std::move(before), std::move(allowed), std::move(group), keeps_first};
  rules.check(rows, n);
  const int64_t most = options.kept;
  Orders found({rows, most, n});
  Orders counts(rows), rounds(rows);
  int64_t *to = found.mutable_data(), *count_of = counts.mutable_data(), *rounds_of = rounds.mutable_data();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < most; ++i) std::copy_n(starts.data() + row * n, n, to + (row * most + i) * n);
    count_of[row] = 1, rounds_of[row] = 0;
  }
  const double* from = items.data();
  const int64_t row_size = items.shape(0) == 1 ? 0 : n * width;
  const auto run = [&](auto* none) {
    using Distance = std::remove_pointer_t<decltype(none)>;
    rows_in_parallel(rows, threads, [&] {
      return [&](int64_t row, Stop& stop) {
        Distance distance(from + row * row_size, n, width);
        TourPool pool(n, options, is_closed, distance.is_symmetric());
        const int64_t* start = starts.data() + row * n;
        if (rebuilds) {
          TourRebuild<Distance> search(std::move(distance), n, is_closed, neighbours, rules.pairs(row), keeps_first,
                                       keeps_last);
          rounds_of[row] = search.run(start, options, seed + uint64_t(row), pool, stop);
        } else {
          // Swaps: of rows with pinned or forbidden places, where insertions push others from their places.
          const TourOptions moves{is_closed, true, rules.has_places(), true, neighbours, -1};
          TourIterations<Distance> search(std::move(distance), n, moves);
          KeptRules kept = rules.row(row, n);
          rounds_of[row] = search.run(start, kept, options, seed + uint64_t(row), pool, stop);
        }
        count_of[row] = pool.size();
        for (int64_t i = 0; i < pool.size(); ++i) {
          std::copy(pool.order(i).begin(), pool.order(i).end(), to + (row * most + i) * n);
        }
      };
    });
  };
  bool is_interrupted = false;
  try {
    if (is_matrix) {
      run(static_cast<MatrixDistance*>(nullptr));
    } else {
      run(static_cast<PointDistance*>(nullptr));
    }
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_KeyboardInterrupt)) throw;
    is_interrupted = true;  // the best so far is an answer
  }
  return py::make_tuple(found, counts, rounds, is_interrupted);
}

// Calls body(a null pointer of the cost's class of costs.h) for the cost of that name.
template <typename Body>
void with_problem(const std::string& cost, Body body) {
  if (cost == "makespan") return body(static_cast<Makespan*>(nullptr));
  if (cost == "total_flow_time") return body(static_cast<TotalFlowTime*>(nullptr));
  if (cost == "weighted_tardiness") return body(static_cast<WeightedTardiness*>(nullptr));
  if (cost == "linear_ordering") return body(static_cast<LinearOrdering*>(nullptr));
  throw py::value_error("cost must be one of makespan, total_flow_time, weighted_tardiness, linear_ordering");
}

// Calls body(search, row, stop) for each row, in parallel; rows of one instance share a search.
template <typename Body>
void with_searches(const std::string& cost, const Numbers& items, int64_t rows, int64_t threads, Body body) {
  const int64_t n = items.shape(1), width = items.shape(2);
  const int64_t wanted = cost == "linear_ordering" ? n : cost == "weighted_tardiness" ? 3 : width;
  if (width != wanted) throw py::value_error("items must be (B, N, " + std::to_string(wanted) + ")");
  const double* from = items.data();
  const int64_t row_size = items.shape(0) == 1 ? 0 : n * width;
  with_problem(cost, [&](auto* none) {
    using Search = OrderSearch<std::remove_pointer_t<decltype(none)>>;
    rows_in_parallel(rows, threads, [&] {
      return [&, search = std::unique_ptr<Search>(), last = static_cast<const double*>(nullptr)](int64_t row,
                                                                                                 Stop& stop) mutable {
        const double* own = from + row * row_size;
        if (last == nullptr || (last != own && std::memcmp(last, own, n * width * sizeof(double)) != 0)) {
          search = std::make_unique<Search>(own, n, width);
        }
        last = own;
        body(*search, row, stop);
      };
    });
  });
}

// Costs (B,) of orders (B, N).
inline py::array_t<double> order_costs(const Numbers& items, const Orders& order, const std::string& cost,
                                       int64_t threads) {
  const Orders checked = checked_copy(items, order);
  const int64_t rows = order.shape(0), n = order.shape(1);
  py::array_t<double> costs(rows);
  double* to = costs.mutable_data();
  with_searches(cost, items, rows, threads,
                [&](auto& search, int64_t row, Stop&) { to[row] = search.cost_of(checked.data() + row * n); });
  return costs;
}

// Orders (B, N) made cheaper.
inline Orders search_orders(const Numbers& items, const Orders& order, const std::string& cost,
                            const std::vector<std::string>& moves, int64_t most_moves, std::optional<Claims> before,
                            std::optional<Claims> allowed, std::optional<Orders> group, bool keeps_first,
                            int64_t threads) {
  Orders cheaper = checked_copy(items, order);
  const int64_t rows = order.shape(0), n = order.shape(1);
  const BatchRules rules{std::move(before), std::move(allowed), std::move(group), keeps_first};
  rules.check(rows, n);
  std::vector<MoveKind> kinds;
  for (const std::string& move : moves) {
    kinds.push_back(move == "insert" ? MoveKind::insert : move == "swap" ? MoveKind::swap : MoveKind::reverse);
  }
  int64_t* to = cheaper.mutable_data();
  with_searches(cost, items, rows, threads, [&](auto& search, int64_t row, Stop& stop) {
    KeptRules kept = rules.row(row, n);
    search.improve(to + row * n, kinds, most_moves, kept, stop);
  });
  return cheaper;
}

// Orders (B, N) built by putting the items, in the order given, each where it is cheapest. before: with all that
// follows from it.
inline Orders build_orders(const Numbers& items, const Orders& order, const std::string& cost,
                           std::optional<Claims> before, int64_t threads) {
  Orders built = checked_copy(items, order);
  int64_t* to = built.mutable_data();
  const int64_t n = order.shape(1);
  const BatchRules rules{std::move(before), std::nullopt, std::nullopt, false};
  rules.check(order.shape(0), n);
  with_searches(cost, items, order.shape(0), threads, [&](auto& search, int64_t row, Stop&) {
    KeptRules kept = rules.row(row, n);
    search.build(to + row * n, kept);
  });
  return built;
}

// Orders (B, N) made cheaper by iterated greedy. temperature: (B,). Row r has the random numbers of seed + r. before:
// as in build_orders.
inline Orders iterated_greedy(const Numbers& items, const Orders& order, const std::string& cost, int64_t rounds,
                              double seconds, int64_t removed, const Numbers& temperature, uint64_t seed,
                              std::optional<Claims> before, int64_t threads) {
  Orders found = checked_copy(items, order);
  const int64_t n = order.shape(1);
  if (temperature.size() != order.shape(0)) throw py::value_error("temperature must be (B,)");
  int64_t* to = found.mutable_data();
  const double* temperatures = temperature.data();
  const BatchRules rules{std::move(before), std::nullopt, std::nullopt, false};
  rules.check(order.shape(0), n);
  with_searches(cost, items, order.shape(0), threads, [&](auto& search, int64_t row, Stop& stop) {
    const GreedyOptions options{rounds, seconds, removed, temperatures[row]};
    KeptRules kept = rules.row(row, n);
    search.iterated_greedy(to + row * n, options, seed + uint64_t(row), kept, stop);
  });
  return found;
}

// A length that no closed tour goes below. distances: (N, N), the same both ways, N >= 3. length: of some tour.
inline double bound_tours(const Numbers& distances, double length, int64_t rounds) {
  const int64_t n = distances.ndim() == 2 ? distances.shape(0) : 0;
  if (n < 3 || distances.shape(1) != n) throw py::value_error("distances must be (N, N), N at least 3");
  double bound = 0;
  rows_in_parallel(1, 1, [&] {
    return [&](int64_t, Stop& stop) { bound = TourBound(distances.data(), n).run(length, rounds, stop); };
  });
  return bound;
}

inline void add_local_search(py::module_& m) {
  m.def("search_tours", &search_tours, py::arg("items"), py::arg("order"), py::kw_only(), py::arg("is_matrix"),
        py::arg("is_closed"), py::arg("moves"), py::arg("neighbours"), py::arg("most_moves"), py::arg("before"),
        py::arg("allowed"), py::arg("group"), py::arg("keeps_first"), py::arg("threads"),
        "Tours (B, N) int64 through points (B, N, D), or by distances (B, N, N), made shorter by moves that help.");
  py::class_<IterationOptions>(m, "IterationOptions", "When iterate_tours ends, what it keeps, how boldly it goes on.")
      .def(py::init<int64_t, double, int64_t, double, double, double>(), py::kw_only(), py::arg("rounds"),
           py::arg("seconds"), py::arg("kept"), py::arg("difference"), py::arg("hot"), py::arg("cold"));
  m.def("iterate_tours", &iterate_tours, py::arg("items"), py::arg("order"), py::kw_only(), py::arg("is_matrix"),
        py::arg("is_closed"), py::arg("rebuilds"), py::arg("neighbours"), py::arg("options"), py::arg("before"),
        py::arg("allowed"), py::arg("group"), py::arg("keeps_first"), py::arg("keeps_last"), py::arg("seed"),
        py::arg("threads"), "The shortest tours (B, kept, N) that iterated searches from tours (B, N) come across.");
  m.def("bound_tours", &bound_tours, py::arg("distances"), py::arg("length"), py::arg("rounds"),
        "A length that no closed tour by symmetric distances (N, N) goes below; length: of some tour.");
  m.def("order_costs", &order_costs, py::arg("items"), py::arg("order"), py::arg("cost"), py::arg("threads"),
        "Costs (B,) of orders (B, N) by the cost of that name.");
  m.def("search_orders", &search_orders, py::arg("items"), py::arg("order"), py::arg("cost"), py::kw_only(),
        py::arg("moves"), py::arg("most_moves"), py::arg("before"), py::arg("allowed"), py::arg("group"),
        py::arg("keeps_first"), py::arg("threads"), "Orders (B, N) made cheaper by moves that help.");
  m.def("build_orders", &build_orders, py::arg("items"), py::arg("order"), py::arg("cost"), py::kw_only(),
        py::arg("before"), py::arg("threads"),
        "Orders (B, N) built by putting the items, in the order given, each where it is cheapest.");
  m.def("iterated_greedy", &iterated_greedy, py::arg("items"), py::arg("order"), py::arg("cost"), py::kw_only(),
        py::arg("rounds"), py::arg("seconds"), py::arg("removed"), py::arg("temperature"), py::arg("seed"),
        py::arg("before"), py::arg("threads"), "Orders (B, N) made cheaper by iterated greedy.");
}

}  // namespace softrank

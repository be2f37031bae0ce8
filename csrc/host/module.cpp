// Module _C: numpy algorithms. No torch in it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "kendall.h"
#include "local_search.h"

namespace py = pybind11;

namespace {

using Ranks = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

py::array_t<int64_t> discordant_pairs(const Ranks& ranks) {
  if (ranks.ndim() != 2) {
    throw py::value_error("ranks must be a (B, N) int64 array, got " + std::to_string(ranks.ndim()) + " dimensions");
  }
  const int64_t rows = ranks.shape(0), n = ranks.shape(1);
  py::array_t<int64_t> counts(rows);
  const int64_t* from = ranks.data();
  int64_t* to = counts.mutable_data();
  {
    py::gil_scoped_release release;
    softrank::count_inversions(from, rows, n, to);
  }
  return counts;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Compiled numpy algorithms of softrank_ext.";
  m.def(
      "discordant_pairs", &discordant_pairs, py::arg("ranks"),
      "Number of pairs in each row of a (B, N) int64 array whose first number is the larger: the Kendall distance of a "
      "permutation to the identity.");
  softrank::add_local_search(m);
}

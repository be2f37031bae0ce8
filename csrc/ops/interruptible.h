// Ops that take long and end early at a signal.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "../kernels/stop.h"
#include "signals.h"

namespace softrank {

// torch's parallel_for over rows, in which the caller waits for the other threads where it can ask for interruptions.
template <typename Body>
void parallel_rows(int64_t rows, int64_t grain, Stop& stop, Body body) {
  struct Part {
    PartsLeft& left;
    int64_t rows;
    ~Part() { left.end(rows); }  // also after an exception
  };
  PartsLeft left(rows);
  torch::stable::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    {
      const Part part{left, end - begin};
      body(begin, end);
    }
    if (stop.is_callers()) left.wait(stop);
  });
}

}  // namespace softrank

// Rows on several threads, stopped by Ctrl-C.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "../kernels/stop.h"

namespace softrank {

// Whether a signal handler of Python has raised something, which then is Python's error. To be called without the GIL.
inline bool is_interrupted() {
  const pybind11::gil_scoped_acquire acquire;
  return PyErr_Occurred() == nullptr && PyErr_CheckSignals() != 0;
}

// Makes a worker on each of at most `threads` threads, by make_worker(), and calls worker(row, stop) once for each row.
// To be called with the GIL; raises KeyboardInterrupt, or what a signal handler raises, after all threads have ended.
template <typename MakeWorker>
void rows_in_parallel(int64_t rows, int64_t threads, MakeWorker make_worker) {
  std::atomic<int64_t> next(0);
  std::exception_ptr error;
  std::mutex lock;
  Stop stop(is_interrupted);
  const auto work = [&] {
    try {
      auto worker = make_worker();
      for (int64_t row = next++; row < rows && !stop(); row = next++) worker(row, stop);
    } catch (...) {
      const std::lock_guard<std::mutex> guard(lock);
      error = std::current_exception();
      stop.stop();
    }
  };
  {
    pybind11::gil_scoped_release release;
    std::vector<std::thread> others;
    const int64_t number = std::max<int64_t>(std::min(threads, rows) - 1, 0);
    PartsLeft working(number);
    for (int64_t i = 0; i < number; ++i) {
      others.emplace_back([&] {
        work();
        working.end(1);
      });
    }
    work();
    working.wait(stop);  // the others may have long rows left: Ctrl-C must reach them too
    for (std::thread& other : others) other.join();
  }
  if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
  if (error) std::rethrow_exception(error);
}

}  // namespace softrank

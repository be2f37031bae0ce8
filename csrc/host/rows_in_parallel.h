// Rows on several threads, stopped by Ctrl-C.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace softrank {

// Whether the rows should stop. The thread that Python called also asks Python for signals, some times a second.
class Stop {
 public:
  Stop(std::atomic<bool>& is_stopped, bool asks_python)
      : is_stopped_(is_stopped), asks_python_(asks_python), asked_(std::chrono::steady_clock::now()) {}

  bool operator()() {
    if (asks_python_ && ++calls_ % 64 == 0) {
      const auto now = std::chrono::steady_clock::now();
      if (now - asked_ > std::chrono::milliseconds(50)) {
        asked_ = now;
        pybind11::gil_scoped_acquire acquire;
        if (PyErr_Occurred() == nullptr && PyErr_CheckSignals() != 0) is_stopped_ = true;
      }
    }
    return is_stopped_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<bool>& is_stopped_;
  const bool asks_python_;
  int64_t calls_ = 0;
  std::chrono::steady_clock::time_point asked_;
};

// Makes a worker on each of at most `threads` threads, by make_worker(), and calls worker(row, stop) once for each row.
// To be called with the GIL; raises KeyboardInterrupt, or what a signal handler raises, after all threads have ended.
template <typename MakeWorker>
void rows_in_parallel(int64_t rows, int64_t threads, MakeWorker make_worker) {
  std::atomic<int64_t> next(0);
  std::atomic<bool> is_stopped(false);
  std::exception_ptr error;
  std::mutex lock;
  std::condition_variable all_ended;
  const auto work = [&](bool asks_python) {
    try {
      Stop stop(is_stopped, asks_python);
      auto worker = make_worker();
      for (int64_t row = next++; row < rows && !stop(); row = next++) worker(row, stop);
    } catch (...) {
      const std::lock_guard<std::mutex> guard(lock);
      error = std::current_exception();
      is_stopped = true;
    }
  };
  {
    pybind11::gil_scoped_release release;
    std::vector<std::thread> others;
    int64_t working = std::max<int64_t>(std::min(threads, rows) - 1, 0);
    for (int64_t i = working; i > 0; --i) {
      others.emplace_back([&] {
        work(false);
        const std::lock_guard<std::mutex> guard(lock);
        if (--working == 0) all_ended.notify_one();
      });
    }
    work(true);
    // The others may have long rows left: Ctrl-C must reach them too.
    std::unique_lock<std::mutex> guard(lock);
    while (working > 0) {
      // By the system clock: waiting by the steady one needs a newer libc than the wheels are for.
      const auto until = std::chrono::system_clock::now() + std::chrono::milliseconds(50);
      if (all_ended.wait_until(guard, until) == std::cv_status::no_timeout) continue;
      pybind11::gil_scoped_acquire acquire;
      if (PyErr_Occurred() == nullptr && PyErr_CheckSignals() != 0) is_stopped = true;
    }
    guard.unlock();
    for (std::thread& other : others) other.join();
  }
  if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
  if (error) std::rethrow_exception(error);
}

}  // namespace softrank

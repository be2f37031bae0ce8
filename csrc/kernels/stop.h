// Whether long work should end, asked by all its threads as often as they like. Host only.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace softrank {

// The thread that makes it, and no other, asks `is_interrupted` some times a second: whether Ctrl-C or the like has
// come.
class Stop {
 public:
  static constexpr std::chrono::milliseconds interval{50};
  static constexpr const char* sentence = "stopped by a signal";

  explicit Stop(bool (*is_interrupted)()) : is_interrupted_(is_interrupted) {}

  bool operator()() {
    if (is_callers() && ++calls_ % 64 == 0) look();
    return is_stopped_.load(std::memory_order_relaxed);
  }
  // For work of which 64 pieces take long.
  void look() {
    if (is_callers() && std::chrono::steady_clock::now() - asked_ > interval) ask();
  }
  void ask() {
    if (is_interrupted_ != nullptr && is_interrupted_()) stop();
    asked_ = std::chrono::steady_clock::now();
  }
  void stop() { is_stopped_ = true; }
  bool is_callers() const { return std::this_thread::get_id() == caller_; }

 private:
  bool (*const is_interrupted_)();
  const std::thread::id caller_ = std::this_thread::get_id();
  std::atomic<bool> is_stopped_{false};
  int64_t calls_ = 0;
  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
};

// Parts of work that other threads have left. The caller, who has none left, asks for interruptions while it waits.
class PartsLeft {
 public:
  explicit PartsLeft(int64_t parts) : parts_(parts) {}

  void end(int64_t parts) {
    const std::lock_guard<std::mutex> guard(lock_);
    if ((parts_ -= parts) == 0) all_ended_.notify_one();
  }
  void wait(Stop& stop) {
    std::unique_lock<std::mutex> guard(lock_);
    while (parts_ > 0) {
      // By the system clock: waiting by the steady one needs a newer libc than the wheels are for.
      const auto until = std::chrono::system_clock::now() + Stop::interval;
      if (all_ended_.wait_until(guard, until) == std::cv_status::timeout) stop.ask();
    }
  }

 private:
  int64_t parts_;
  std::mutex lock_;
  std::condition_variable all_ended_;
};

}  // namespace softrank

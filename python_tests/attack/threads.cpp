// The ops' parallel loops on 4 threads of the C++ library, in place of torch's: preloaded into a process under
// ThreadSanitizer, which knows when such threads begin and end. It knows nothing of OpenMP's.
// With SOFTRANK_OVERLAP in the environment, neighbouring parts share a row: a race that must be reported.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

namespace {
constexpr int64_t threads = 4;
thread_local bool is_inside = false;  // as in torch, a loop within a loop stays on its thread
}  // namespace

extern "C" {

__attribute__((visibility("default"))) int32_t torch_get_num_threads(uint32_t* out) {
  *out = threads;
  return 0;
}

__attribute__((visibility("default"))) int32_t torch_parallel_for(int64_t begin, int64_t end, int64_t,
                                                                  void (*func)(int64_t, int64_t, void*),
                                                                  void* context) {
  if (is_inside || end - begin < 2) {
    if (begin < end) func(begin, end, context);
    return 0;
  }
  const int64_t shared = std::getenv("SOFTRANK_OVERLAP") == nullptr ? 0 : 1;
  const int64_t parts = std::min(threads, end - begin);
  std::array<std::exception_ptr, threads> errors;
  std::vector<std::thread> started;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t from = begin + (end - begin) * part / parts;
    const int64_t to = std::min(begin + (end - begin) * (part + 1) / parts + shared, end);
    started.emplace_back([=, &errors] {
      is_inside = true;
      try {
        func(from, to, context);
      } catch (...) {
        errors[part] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : started) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return 0;
}
}

// Runs CUDA kernels on the host, to test their logic where there is no GPU: one fiber per thread, block after block.
//
// Include it before a file of kernels. Between two barriers the fibers run one after another in an order that is
// shuffled anew each time, and shared memory starts every block filled with 0xFF bytes (NaN, -1): a missing barrier
// makes a thread read what is not there yet. This shows logic, not speed, and no race between single instructions.
#pragma once

#include <link.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

#define __global__
// One host thread runs all fibers, so they share its thread-local storage, which can be found as a whole and filled.
#define __shared__ static thread_local
#define __syncthreads() cuda_on_host::wait_at_barrier(__LINE__)
#define __trap() cuda_on_host::trap()

namespace cuda_on_host {

enum class Outcome : int { finished = 0, trapped = 1, diverged = 2 };

// The barrier in this source line is ignored, for negative controls: 0 = none is, -1 = all are.
inline int ignored_barrier = 0;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  int barrier_line = 0;
  bool is_finished = false;
};

inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline Fiber* running = nullptr;
inline std::function<void()> call_of_kernel;
inline bool has_trapped = false;
inline thread_local char any_shared_memory;

inline void wait_at_barrier(int line) {
  if (ignored_barrier == line || ignored_barrier == -1) return;
  running->barrier_line = line;
  swapcontext(&running->context, &scheduler);
}

[[noreturn]] inline void trap() {
  has_trapped = true;
  setcontext(&scheduler);
  __builtin_unreachable();
}

inline void fiber_main() {
  call_of_kernel();
  running->is_finished = true;
}

inline void poison_shared_memory() {
  any_shared_memory = 0;  // the storage of this thread exists from its first use on
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void*) {
        const auto* storage = static_cast<char*>(library->dlpi_tls_data);
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& segment = library->dlpi_phdr[i];
          if (segment.p_type != PT_TLS || storage == nullptr) continue;
          if (&any_shared_memory < storage || &any_shared_memory >= storage + segment.p_memsz) continue;
          std::memset(library->dlpi_tls_data, 0xFF, segment.p_memsz);
        }
        return 0;
      },
      nullptr);
}

// A function of its own: to the compiler getcontext may return twice, and it warns about variables nearby.
inline void prepare(Fiber& fiber) {
  constexpr size_t stack_bytes = 64 * 1024;
  if (!fiber.stack) fiber.stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = stack_bytes;
  fiber.context.uc_link = &scheduler;
  makecontext(&fiber.context, fiber_main, 0);
  fiber.is_finished = false;
}

// Runs the fibers of one block from barrier to barrier. All must meet at the same barrier or end together.
inline Outcome run_block(int threads, std::mt19937& random) {
  poison_shared_memory();
  if (fibers.size() < size_t(threads)) fibers.resize(threads);
  std::vector<int> order(threads);
  for (int thread = 0; thread < threads; ++thread) {
    prepare(fibers[thread]);
    order[thread] = thread;
  }
  while (true) {
    std::shuffle(order.begin(), order.end(), random);
    for (const int thread : order) {
      running = &fibers[thread];
      threadIdx.x = unsigned(thread);
      swapcontext(&scheduler, &running->context);
      if (has_trapped) return Outcome::trapped;
    }
    const Fiber& first = fibers[0];
    for (int thread = 1; thread < threads; ++thread) {
      const Fiber& fiber = fibers[thread];
      if (fiber.is_finished != first.is_finished) return Outcome::diverged;
      if (!fiber.is_finished && fiber.barrier_line != first.barrier_line) return Outcome::diverged;
    }
    if (first.is_finished) return Outcome::finished;
  }
}

// kernel<<<blocks, threads>>>(arguments...), where `call` calls the kernel. Ends at the first block that does not
// finish.
inline Outcome launch(int64_t blocks, int threads, std::function<void()> call) {
  std::mt19937 random(20240607);
  call_of_kernel = std::move(call);
  has_trapped = false;
  gridDim.x = unsigned(blocks);
  blockDim.x = unsigned(threads);
  for (int64_t block = 0; block < blocks; ++block) {
    blockIdx.x = unsigned(block);
    const Outcome outcome = run_block(threads, random);
    if (outcome != Outcome::finished) return outcome;
  }
  return Outcome::finished;
}

}  // namespace cuda_on_host

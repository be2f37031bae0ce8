// Runs CUDA kernels on the host, to test their logic where there is no GPU: one fiber per thread, block after block.
//
// Include it before a file of kernels. Between two meetings (barriers, warp operations) the fibers run one after
// another in an order that is shuffled anew each time, and shared memory starts every block filled with 0xFF bytes
// (NaN, -1): a missing barrier makes a thread read what is not there yet. Under -fsanitize=thread each fiber is a
// thread to the sanitizer. A switch of fibers orders nothing, __syncthreads orders the block, __syncwarp the warp, and
// warp operations that exchange values order nothing, as in CUDA's memory model: two accesses that no barrier stands
// between are reported with their lines. This shows logic, not speed.
#pragma once

#include <link.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define UNSEEN_BY_TSAN __attribute__((no_sanitize("thread"), noinline))
#else
#define UNSEEN_BY_TSAN __attribute__((noinline))
inline void* __tsan_create_fiber(unsigned) { return nullptr; }
inline void* __tsan_get_current_fiber() { return nullptr; }
inline void __tsan_destroy_fiber(void*) {}
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_release(void*) {}
inline void __tsan_acquire(void*) {}
constexpr unsigned __tsan_switch_to_fiber_no_sync = 1;
#endif
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#define CUDA_ON_HOST_MSAN
#endif
#endif

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Variables are static, not inline: two libraries made of this header must not share them.
namespace cuda_on_host {

enum class Outcome : int { finished = 0, trapped = 1, diverged = 2 };
enum class Waiting { no, for_block, for_warp, finished };

// The barrier in this source line is ignored, for negative controls: 0 = none is, -1 = all are. If there is a name,
// only that of a file whose path ends so.
static int ignored_barrier = 0;
static const char* ignored_file = "";
// Bytes that are missing at the end of dynamic shared memory, for negative controls.
static size_t missing_shared_bytes = 0;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  void* sanitizer = nullptr;
  Waiting waiting = Waiting::no;
  int line = 0;  // of what it waits at
  unsigned block_meetings = 0, warp_meetings = 0;
  unsigned char exchanged[2]
                         [32];  // what a warp operation shows to the others; two in turn, so that one meeting is enough
};

static ucontext_t scheduler;
static void* scheduler_fiber = nullptr;
static std::vector<Fiber> fibers;
static Fiber* running = nullptr;
static int thread_number, block_number, threads_per_block, block_count;
static std::function<void()> call_of_kernel;
static bool has_trapped = false;
static char* dynamic_shared = nullptr;
// What the sanitizer orders by. Barriers take turns with two: who is late at one must not see what others have done
// since.
static char launch_token, end_token, block_tokens[2], warp_tokens[64][2];
static thread_local char any_shared_memory;

UNSEEN_BY_TSAN inline dim3 thread_index() { return {unsigned(thread_number), 0, 0}; }
UNSEEN_BY_TSAN inline dim3 block_index() { return {unsigned(block_number), 0, 0}; }
UNSEEN_BY_TSAN inline dim3 block_size() { return {unsigned(threads_per_block), 1, 1}; }
UNSEEN_BY_TSAN inline dim3 grid_size() { return {unsigned(block_count), 1, 1}; }
UNSEEN_BY_TSAN inline char* dynamic_shared_memory() { return dynamic_shared; }

UNSEEN_BY_TSAN inline void wait(Waiting what, int line) {
  Fiber* self = running;
  self->waiting = what;
  self->line = line;
  __tsan_switch_to_fiber(scheduler_fiber, __tsan_switch_to_fiber_no_sync);
  swapcontext(&self->context, &scheduler);
}

UNSEEN_BY_TSAN inline bool is_ignored(const char* file, int line) {
  if (ignored_barrier != line && ignored_barrier != -1) return false;
  const size_t length = std::strlen(file), ending = std::strlen(ignored_file);
  return ending <= length && std::strcmp(file + length - ending, ignored_file) == 0;
}

UNSEEN_BY_TSAN inline void wait_at_barrier(const char* file, int line) {
  if (is_ignored(file, line)) return;
  char* token = &block_tokens[running->block_meetings++ % 2];
  __tsan_release(token);
  wait(Waiting::for_block, line);
  __tsan_acquire(token);
}

UNSEEN_BY_TSAN inline void wait_for_warp(const char* file, int line) {
  if (is_ignored(file, line)) return;
  char* token = &warp_tokens[thread_number / 32][running->warp_meetings++ % 2];
  __tsan_release(token);
  wait(Waiting::for_warp, line);
  __tsan_acquire(token);
}

UNSEEN_BY_TSAN inline int lane() { return thread_number % 32; }

// Shows a value to the warp and waits until all lanes have shown theirs; returns the buffer that they are in. Copies of
// a fixed size are single instructions: the sanitizer would see a call of memcpy.
template <typename T>
UNSEEN_BY_TSAN unsigned show(const T& value, int line) {
  static_assert(sizeof(T) <= sizeof(Fiber::exchanged[0]));
  Fiber* self = running;
  const unsigned buffer = self->warp_meetings++ % 2;
  __builtin_memcpy(self->exchanged[buffer], &value, sizeof(T));
  wait(Waiting::for_warp, line);
  return buffer;
}

// What a lane of this warp has shown.
template <typename T>
UNSEEN_BY_TSAN T shown(unsigned buffer, int by_lane) {
  T value;
  __builtin_memcpy(&value, fibers[thread_number / 32 * 32 + by_lane].exchanged[buffer], sizeof(T));
  return value;
}

template <typename T>
UNSEEN_BY_TSAN T shuffle(T value, int from, int line) {
  const int source = from < 0 || from > 31 ? lane() : from;
  return shown<T>(show(value, line), source);
}

UNSEEN_BY_TSAN inline unsigned ballot(bool value, int line) {
  const unsigned buffer = show(value, line);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= unsigned(shown<bool>(buffer, i)) << i;
  return result;
}

// The tensor cores' product of one warp, as mma.m16n8k8 gives it: exact products, summed and then cut off, which is no
// better than any tensor core does it.
UNSEEN_BY_TSAN inline void add_tile_product(float (&sum)[4], const float (&a)[4], const float (&b)[2], int line) {
  struct Fragments {
    float a[4], b[2];
  };
  const unsigned buffer = show(Fragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, line);
  const int group = lane() / 4, member = lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = group + i / 2 * 8, column = 2 * member + i % 2;
    double total = double(sum[i]);
    for (int k = 0; k < 8; ++k) {
      const Fragments of_row = shown<Fragments>(buffer, row % 8 * 4 + k % 4);
      const Fragments of_column = shown<Fragments>(buffer, column * 4 + k % 4);
      total += double(of_row.a[row / 8 + k / 4 * 2]) * double(of_column.b[k / 4]);
    }
    sum[i] = float(total);
    if (std::abs(double(sum[i])) > std::abs(total)) sum[i] = std::nextafter(sum[i], 0.0f);
  }
}

[[noreturn]] UNSEEN_BY_TSAN inline void trap() {
  has_trapped = true;
  __tsan_switch_to_fiber(scheduler_fiber, __tsan_switch_to_fiber_no_sync);
  setcontext(&scheduler);
  __builtin_unreachable();
}

UNSEEN_BY_TSAN inline void begin_thread() { __tsan_acquire(&launch_token); }

UNSEEN_BY_TSAN inline void end_thread() {
  running->waiting = Waiting::finished;
  __tsan_release(&end_token);
  __tsan_switch_to_fiber(scheduler_fiber, __tsan_switch_to_fiber_no_sync);
  setcontext(&scheduler);
}

inline void fiber_main() {
  begin_thread();
  call_of_kernel();
  end_thread();
}

// Static shared memory is this thread's thread-local storage, which can be found as a whole and filled.
UNSEEN_BY_TSAN inline void poison_static_shared_memory() {
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

// The sanitizers must see the end of the memory where the kernel's request ends. Under TSan nothing is given back: that
// would order blocks.
UNSEEN_BY_TSAN inline void make_shared_memory(size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  dynamic_shared = static_cast<char*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64));
#else
#if !defined(CUDA_ON_HOST_MSAN)  // it keeps its own there
  poison_static_shared_memory();
#endif
  static std::unique_ptr<char[]> memory;
  memory = std::make_unique_for_overwrite<char[]>(bytes + 16);
  // operator new aligns to 16 bytes, as CUDA does here.
  dynamic_shared = memory.get() + 16;
#endif
  std::memset(dynamic_shared, 0xFF, bytes);
#if defined(CUDA_ON_HOST_MSAN)
  __msan_allocated_memory(dynamic_shared, bytes);
#endif
}

// A function of its own: to the compiler getcontext may return twice, and it warns about variables nearby.
UNSEEN_BY_TSAN inline void prepare(Fiber& fiber) {
  constexpr size_t stack_bytes = 128 * 1024;
#if defined(__SANITIZE_THREAD__)
  (void)fiber.stack.release();  // to the sanitizer it belongs to a thread that has ended
#endif
  if (!fiber.stack) fiber.stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = stack_bytes;
  fiber.context.uc_link = &scheduler;
  makecontext(&fiber.context, fiber_main, 0);
  fiber.waiting = Waiting::no;
  fiber.block_meetings = fiber.warp_meetings = 0;
  fiber.sanitizer = __tsan_create_fiber(0);
}

// Lets the warps go on whose lanes all wait at one warp operation; false if there is none.
UNSEEN_BY_TSAN inline bool release_warps(int threads) {
  bool has_released = false;
  for (int first = 0; first + 32 <= threads; first += 32) {
    const auto begin = fibers.begin() + first, end = begin + 32;
    if (!std::all_of(begin, end, [&](const Fiber& fiber) {
          return fiber.waiting == Waiting::for_warp && fiber.line == begin->line;
        })) {
      continue;
    }
    for (auto fiber = begin; fiber != end; ++fiber) fiber->waiting = Waiting::no;
    has_released = true;
  }
  return has_released;
}

// Runs the fibers of one block from meeting to meeting. All must meet at the same barrier or end together.
UNSEEN_BY_TSAN inline Outcome run_fibers(int threads, std::mt19937& random, std::vector<int>& order) {
  while (true) {
    std::shuffle(order.begin(), order.end(), random);
    for (const int thread : order) {
      if (fibers[thread].waiting != Waiting::no) continue;
      running = &fibers[thread];
      thread_number = thread;
      __tsan_switch_to_fiber(running->sanitizer, __tsan_switch_to_fiber_no_sync);
      swapcontext(&scheduler, &running->context);
      if (has_trapped) return Outcome::trapped;
    }
    if (release_warps(threads)) continue;
    const Fiber& first = fibers[0];
    for (int thread = 0; thread < threads; ++thread) {
      const Fiber& fiber = fibers[thread];
      if (fiber.waiting == Waiting::for_warp || fiber.waiting != first.waiting) return Outcome::diverged;
      if (fiber.waiting == Waiting::for_block && fiber.line != first.line) return Outcome::diverged;
    }
    if (first.waiting == Waiting::finished) return Outcome::finished;
    for (int thread = 0; thread < threads; ++thread) fibers[thread].waiting = Waiting::no;
  }
}

UNSEEN_BY_TSAN inline Outcome run_block(int threads, size_t shared_bytes, std::mt19937& random) {
  make_shared_memory(shared_bytes - std::min(missing_shared_bytes, shared_bytes));
  fibers.resize(std::max(fibers.size(), size_t(threads)));
  std::vector<int> order(threads);
  for (int thread = 0; thread < threads; ++thread) {
    prepare(fibers[thread]);
    order[thread] = thread;
  }
  scheduler_fiber = __tsan_get_current_fiber();
  __tsan_release(&launch_token);
  const Outcome outcome = run_fibers(threads, random, order);
  for (int thread = 0; thread < threads; ++thread) __tsan_destroy_fiber(fibers[thread].sanitizer);
  return outcome;
}

// kernel<<<blocks, threads, shared_bytes>>>(arguments...), where `call` calls the kernel. Ends at the first block that
// does not finish.
UNSEEN_BY_TSAN inline Outcome launch(int64_t blocks, int threads, std::function<void()> call, size_t shared_bytes = 0,
                                     int64_t first_block = 0) {
  std::mt19937 random(20240607);
  call_of_kernel = std::move(call);
  has_trapped = false;
  block_count = int(blocks);
  threads_per_block = threads;
  Outcome outcome = Outcome::finished;
  for (int64_t block = 0; block < blocks && outcome == Outcome::finished; ++block) {
    block_number = int(first_block + block);
    outcome = run_block(threads, shared_bytes, random);
  }
  __tsan_acquire(&end_token);
  return outcome;
}

// The same with a launch for each block. Static shared memory stands in one place for all blocks, which only launches
// give an order that the sanitizer sees.
inline Outcome launch_in_turn(int64_t blocks, int threads, const std::function<void()>& call) {
  Outcome outcome = Outcome::finished;
  for (int64_t block = 0; block < blocks && outcome == Outcome::finished; ++block) {
    outcome = launch(1, threads, call, 0, block);
  }
  return outcome;
}

// The same for a kernel whose threads never meet, without fibers.
inline void launch_without_meetings(int64_t blocks, int threads, const std::function<void()>& call) {
  block_count = int(blocks);
  threads_per_block = threads;
  for (block_number = 0; block_number < blocks; ++block_number) {
    for (thread_number = 0; thread_number < threads; ++thread_number) call();
  }
}

}  // namespace cuda_on_host

#define threadIdx (::cuda_on_host::thread_index())
#define blockIdx (::cuda_on_host::block_index())
#define blockDim (::cuda_on_host::block_size())
#define gridDim (::cuda_on_host::grid_size())
#define __global__
#define __device__
#define __launch_bounds__(...)
// One host thread runs all fibers, so they share its thread-local storage.
#define __shared__ static thread_local
#define __syncthreads() cuda_on_host::wait_at_barrier(__FILE__, __LINE__)
#define __syncwarp() cuda_on_host::wait_for_warp(__FILE__, __LINE__)
#define __shfl_sync(mask, value, from) cuda_on_host::shuffle(value, from, __LINE__)
#define __shfl_xor_sync(mask, value, by) cuda_on_host::shuffle(value, cuda_on_host::lane() ^ (by), __LINE__)
#define __shfl_up_sync(mask, value, by) cuda_on_host::shuffle(value, cuda_on_host::lane() - (by), __LINE__)
#define __ballot_sync(mask, value) cuda_on_host::ballot(value, __LINE__)
#define __trap() cuda_on_host::trap()

inline int __ffs(unsigned bits) { return __builtin_ffs(int(bits)); }
inline int __clz(unsigned bits) { return bits == 0 ? 32 : __builtin_clz(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

namespace softrank {

template <typename T>
T* shared_memory() {
  return reinterpret_cast<T*>(cuda_on_host::dynamic_shared_memory());
}

inline float to_tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x1000u) & 0xFFFFE000u;  // to nearest, ties away from zero; NaN and infinities stay so
  std::memcpy(&x, &bits, sizeof(bits));
  return x;
}

inline void add_tile_product(float (&sum)[4], const float (&a)[4], const float (&b)[2]) {
  cuda_on_host::add_tile_product(sum, a, b, __LINE__);
}

}  // namespace softrank

// CPU kernels of the counter noise; compiled once per instruction set, with floating-point contraction off.
#include "../../kernels/philox.h"
#include "isa_kernels.h"
#include "row_kernels.h"

namespace softrank {
namespace {

// Blocks are made in groups whose loop over the group the compiler turns into vector code.
constexpr int64_t group = 16;

template <typename T, typename FromBits>
void random_numbers(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t count, T* out, FromBits from_bits) {
  T numbers[2 * group];
  for (int64_t first = 0; first < count; first += 2 * group) {
    for (int64_t i = 0; i < group; ++i) {
      const PhiloxBlock block = philox_block(seed, sample, step_and_stream, uint32_t(first / 2 + i));
      from_bits(block.word[0], block.word[1], numbers[2 * i]);
      from_bits(block.word[2], block.word[3], numbers[2 * i + 1]);
    }
    const int64_t here = count - first < 2 * group ? count - first : 2 * group;
    for (int64_t i = 0; i < here; ++i) out[first + i] = numbers[i];
  }
}

template <typename T>
void random_uniform(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t count, T* out) {
  random_numbers(seed, sample, step_and_stream, count, out,
                 [](uint32_t high, uint32_t low, T& number) { uniform_of_bits(high, low, number); });
}

template <typename T>
void random_normal(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t count, T* out) {
  random_numbers(seed, sample, step_and_stream, count, out,
                 [](uint32_t high, uint32_t low, T& number) { normal_of_bits(high, low, number); });
}

template <typename T>
void fill(RowKernels<T>& table) {
  table.random_uniform = random_uniform<T>;
  table.random_normal = random_normal<T>;
}

}  // namespace

namespace SOFTRANK_ISA {

void add_random_kernels(CpuKernels& kernels) {
  fill(kernels.float_rows);
  fill(kernels.double_rows);
}

}  // namespace SOFTRANK_ISA
}  // namespace softrank

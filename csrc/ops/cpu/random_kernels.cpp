// CPU kernels of the counter noise; compiled once per instruction set, with floating-point contraction off.
#include <cstring>

#include "../../kernels/philox.h"
#include "isa_kernels.h"
#include "row_kernels.h"

namespace softrank {
namespace {

// Numbers are made in groups; the loops over a group are plain, so that the compiler turns them into vector code.
constexpr int64_t group = 32;

// The high and low words behind `group` numbers from an even index on.
struct GroupBits {
  uint32_t high[group], low[group];
};

inline void random_bits(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t first, GroupBits& bits) {
  constexpr int64_t blocks = group / 2;
  uint32_t w0[blocks], w1[blocks], w2[blocks], w3[blocks];
  for (int64_t i = 0; i < blocks; ++i) {
    const PhiloxBlock block = philox_block(seed, sample, step_and_stream, uint32_t(first / 2 + i));
    w0[i] = block.word[0];
    w1[i] = block.word[1];
    w2[i] = block.word[2];
    w3[i] = block.word[3];
  }
  for (int64_t i = 0; i < blocks; ++i) {
    bits.high[2 * i] = w0[i];
    bits.low[2 * i] = w1[i];
    bits.high[2 * i + 1] = w2[i];
    bits.low[2 * i + 1] = w3[i];
  }
}

// Fills out[0..count) by whole groups: `from_bits` turns a group's bits into its numbers.
template <typename T, typename FromBits>
inline void random_numbers(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t count, T* out,
                           FromBits from_bits) {
  GroupBits bits;
  for (int64_t first = 0; first < count; first += group) {
    random_bits(seed, sample, step_and_stream, first, bits);
    T numbers[group];
    from_bits(bits, numbers);
    const int64_t here = count - first < group ? count - first : group;
    std::memcpy(out + first, numbers, here * sizeof(T));
  }
}

template <typename T>
void random_uniform(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t count, T* out) {
  random_numbers(seed, sample, step_and_stream, count, out, [](const GroupBits& bits, T* numbers) {
    for (int64_t i = 0; i < group; ++i) uniform_of_bits(bits.high[i], bits.low[i], numbers[i]);
  });
}

template <typename T>
void random_normal(uint64_t seed, uint64_t sample, uint32_t step_and_stream, int64_t count, T* out) {
  random_numbers(seed, sample, step_and_stream, count, out, [](const GroupBits& bits, T* numbers) {
    double q[group];
    for (int64_t i = 0; i < group; ++i) q[i] = centred_cell(bits.high[i], bits.low[i]);
    for (int64_t i = 0; i < group; ++i) numbers[i] = T(normal_quantile_centre(q[i]));
    for (int64_t i = 0; i < group; ++i) {
      if (!is_in_centre(q[i])) numbers[i] = T(normal_quantile_tail(q[i]));
    }
  });
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

// CPU kernels of reflect, decode_chamber, pick and checksum; compiled once per instruction set (SOFTRANK_ISA names it).
#include <bit>
#include <cmath>

#include "../../kernels/chamber.h"
#include "../../kernels/pick.h"
#include "../../kernels/reflect.h"
#include "cpu_kernels.h"
#include "isa_kernels.h"
#include "vector.h"

namespace softrank {
namespace {

template <typename T>
void reflect(const T* __restrict x, T* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = reflect_value(x[i]);
}

template <typename T>
struct SortKey;
template <>
struct SortKey<float> {
  using Type = uint32_t;
  using Signed = int32_t;
};
template <>
struct SortKey<double> {
  using Type = uint64_t;
  using Signed = int64_t;
};

// An unsigned number that orders like the value; -0 counts as 0.
template <typename T>
inline typename SortKey<T>::Type sort_key(T value) {
  using Key = typename SortKey<T>::Type;
  value = value == T(0) ? T(0) : value;
  Key bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const Key sign = Key(1) << (8 * sizeof(Key) - 1);
  return (bits & sign) ? ~bits : bits | sign;
}

// Rows up to this length are decoded by counting, longer ones by radix sort (measured: they meet near here).
constexpr int64_t longest_counted = 384;

// Vectors of items whose ranks are counted together: one load of another item serves them all.
constexpr int64_t counted_together = 4;

template <typename T>
constexpr int64_t counted_block = counted_together * lanes<T>;

// rank[i] = number of items that come before item i, counted a block of items at a time. `values` is padded to a block
// with anything.
template <typename T>
void count_ranks(const T* values, int64_t n, VectorBits<T>* counts) {
  constexpr int64_t width = lanes<T>, block = counted_block<T>;
  VectorBits<T> lane_numbers;
  for (int64_t lane = 0; lane < width; ++lane) lane_numbers[lane] = lane;
  for (int64_t first = 0; first < n; first += block) {
    Vector<T> own[counted_together];
    VectorBits<T> count[counted_together] = {};
    for (int64_t j = 0; j < counted_together; ++j) own[j] = load(values + first + j * width);
    for (int64_t item = 0; item < first; ++item) {
      const Vector<T> other = broadcast(values[item]);
      for (int64_t j = 0; j < counted_together; ++j) count[j] -= (other <= own[j]);
    }
    const int64_t block_end = first + block < n ? first + block : n;
    for (int64_t item = first; item < block_end; ++item) {
      const Vector<T> other = broadcast(values[item]);
      const VectorBits<T> place_in_block = VectorBits<T>{} + typename SortKey<T>::Signed(item - first);
      for (int64_t j = 0; j < counted_together; ++j) {
        const VectorBits<T> is_lower_item = lane_numbers + typename SortKey<T>::Signed(j * width) > place_in_block;
        count[j] -= (other < own[j]) | ((other == own[j]) & is_lower_item);
      }
    }
    for (int64_t item = block_end; item < n; ++item) {
      const Vector<T> other = broadcast(values[item]);
      for (int64_t j = 0; j < counted_together; ++j) count[j] -= (other < own[j]);
    }
    for (int64_t j = 0; j < counted_together; ++j) counts[first / width + j] = count[j];
  }
}

template <typename Key>
struct KeyedItem {
  Key key;
  uint32_t item;
};

// Stable least-significant-digit radix sort; returns the array that holds the result.
template <typename Key>
KeyedItem<Key>* radix_sort(KeyedItem<Key>* from, KeyedItem<Key>* to, int64_t n, uint32_t* histogram) {
  constexpr int digit_bits = 11;
  constexpr uint32_t digits = 1u << digit_bits;
  for (unsigned shift = 0; shift < 8 * sizeof(Key); shift += digit_bits) {
    std::memset(histogram, 0, digits * sizeof(uint32_t));
    for (int64_t i = 0; i < n; ++i) ++histogram[(from[i].key >> shift) & (digits - 1)];
    if (histogram[(from[0].key >> shift) & (digits - 1)] == uint64_t(n)) continue;
    uint32_t start = 0;
    for (uint32_t digit = 0; digit < digits; ++digit) {
      const uint32_t size = histogram[digit];
      histogram[digit] = start;
      start += size;
    }
    for (int64_t i = 0; i < n; ++i) to[histogram[(from[i].key >> shift) & (digits - 1)]++] = from[i];
    KeyedItem<Key>* sorted = to;
    to = from;
    from = sorted;
  }
  return from;
}

template <typename T>
void decode_chamber(const T* soft_ranks, const bool* mask, int64_t n, int64_t* order, int64_t* ranks, void* scratch) {
  using Key = typename SortKey<T>::Type;
  int64_t real = n;
  if (mask != nullptr) {
    real = 0;
    for (int64_t item = 0; item < n; ++item) real += mask[item];
    int64_t place = real;
    for (int64_t item = 0; item < n; ++item) {
      if (mask[item]) continue;
      order[place] = item;
      ranks[item] = place++;
    }
  }
  if (real <= longest_counted) {
    alignas(64) T values[longest_counted + counted_block<T>];
    alignas(64) int32_t item_of[longest_counted];
    alignas(64) VectorBits<T> counts[longest_counted / lanes<T> + counted_together];
    if (mask == nullptr) {
      for (int64_t item = 0; item < n; ++item) values[item] = comparable(soft_ranks[item]);
    } else {
      for (int64_t item = 0, i = 0; item < n; ++item) {
        if (!mask[item]) continue;
        item_of[i] = int32_t(item);
        values[i++] = comparable(soft_ranks[item]);
      }
    }
    for (int64_t i = real; i < real + counted_block<T>; ++i) values[i] = T(0);
    count_ranks(values, real, counts);
    for (int64_t i = 0; i < real; ++i) {
      const int64_t item = mask == nullptr ? i : item_of[i];
      const int64_t place = counts[i / lanes<T>][i % lanes<T>];
      ranks[item] = place;
      order[place] = item;
    }
    return;
  }
  uint32_t* histogram = static_cast<uint32_t*>(scratch);
  auto* keyed = reinterpret_cast<KeyedItem<Key>*>(histogram + 4096);
  for (int64_t item = 0, i = 0; item < n; ++item) {
    if (mask == nullptr || mask[item]) keyed[i++] = {sort_key(comparable(soft_ranks[item])), uint32_t(item)};
  }
  const KeyedItem<Key>* sorted = radix_sort(keyed, keyed + n, real, histogram);
  for (int64_t place = 0; place < real; ++place) {
    order[place] = sorted[place].item;
    ranks[sorted[place].item] = place;
  }
}

template <typename T>
PickFailure pick(const T* scores, const bool* remaining, const T* uniform, const int64_t* forced, int64_t n,
                 int64_t* choice, T* log_prob, T* weights) {
  const T infinity = T(INFINITY);
  const int64_t padded = (n + lanes<T> - 1) / lanes<T> * lanes<T>;
  bool remains = false, is_nan = false;
  for (int64_t i = 0; i < n; ++i) remains |= remaining[i];
  // By bits, not by a condition: which items remain is as good as random, and a branch would be mispredicted.
  using Key = typename SortKey<T>::Type;
  const Key lowest = std::bit_cast<Key>(-infinity);
  for (int64_t i = 0; i < n; ++i) {
    const Key keep = Key(0) - Key(remaining[i]);
    weights[i] = std::bit_cast<T>(Key((std::bit_cast<Key>(scores[i]) & keep) | (lowest & ~keep)));
  }
  for (int64_t i = 0; i < n; ++i) is_nan |= weights[i] != weights[i];
  if (!remains) return PickFailure::nothing_remains;
  if (is_nan) return PickFailure::score_is_nan;
  for (int64_t i = n; i < padded; ++i) weights[i] = -infinity;
  Vector<T> tops = load(weights);
  for (int64_t i = lanes<T>; i < padded; i += lanes<T>) {
    const Vector<T> score = load(weights + i);
    tops = score > tops ? score : tops;
  }
  const T top = horizontal_max<T>(tops);
  if (forced != nullptr) {
    *choice = *forced;
  } else if (uniform == nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      if (remaining[i] && weights[i] == top) {
        *choice = i;
        break;
      }
    }
  }
  Vector<T> totals{};
  if (top == infinity || top == -infinity) {
    // exp(inf - inf): the items at the top share everything, among them no item outside the set.
    for (int64_t i = 0; i < padded; ++i) weights[i] = i < n && remaining[i] && weights[i] == top ? T(1) : T(0);
    for (int64_t i = 0; i < padded; i += lanes<T>) totals += load(weights + i);
  } else {
    for (int64_t i = 0; i < padded; i += lanes<T>) {
      const Vector<T> weight = exp_nonpositive(load(weights + i) - top);
      store(weights + i, weight);
      totals += weight;
    }
  }
  const T total = horizontal_sum<T>(totals);
  if (forced == nullptr && uniform != nullptr) *choice = item_at(weights, n, *uniform * total);
  *log_prob = relative_score(scores[*choice], top) - std::log(total);
  return PickFailure::none;
}

// Words go to 64 lanes in turn. For equal words, every step maps different states to different ones, and so does the
// sum over lanes at the end: a change in one word cannot be lost.
uint64_t checksum(const void* data, int64_t bytes) {
  constexpr int64_t lane_count = 64, block_bytes = 4 * lane_count;
  uint32_t states[lane_count] = {};
  for (int64_t at = 0; at < bytes; at += block_bytes) {
    uint32_t words[lane_count] = {};
    std::memcpy(words, static_cast<const char*>(data) + at, bytes - at < block_bytes ? bytes - at : block_bytes);
    for (int64_t lane = 0; lane < lane_count; ++lane) {
      states[lane] = std::rotl(states[lane] ^ words[lane], 15) * 0x85EBCA6Bu + 0x9E3779B9u;
    }
  }
  uint64_t sum = uint64_t(bytes);
  for (const uint32_t state : states) {
    sum = (sum ^ state) * 0x9E3779B97F4A7C15u;
    sum ^= sum >> 32;
  }
  return sum;
}

template <typename T>
void fill(RowKernels<T>& table) {
  table.reflect = reflect<T>;
  table.decode_chamber = decode_chamber<T>;
  table.pick = pick<T>;
}

}  // namespace

namespace SOFTRANK_ISA {

void add_row_kernels(CpuKernels& kernels) {
  kernels.checksum = checksum;
  fill(kernels.float_rows);
  fill(kernels.double_rows);
}

}  // namespace SOFTRANK_ISA
}  // namespace softrank

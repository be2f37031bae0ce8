// Packed weights as tensors: a header of 64 bytes, then what the kernels read. Every kernel checks the header, and the
// checksum of the rest when it meets a tensor for the first time.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "../tensors.h"
#include "cpu_kernels.h"

namespace softrank {

struct PackedHeader {
  int64_t magic, version;
  int32_t kind;               // a WeightKind
  int32_t number_bytes;       // of float32 or float64
  uint64_t checksum;          // of what follows the header
  int64_t layers;             // 1 of a projection
  int64_t width, feed_width;  // inputs and outputs of a projection
  int64_t numbers;            // of the whole tensor

  static constexpr int64_t right_magic = 0x6b6e617274666f73;  // "softrank"
  static constexpr int64_t right_version = 2;                 // to be raised with every change of a layout
};
static_assert(sizeof(PackedHeader) == 64, "a header fills one panel, so that what follows is aligned");

inline const char* name_of(WeightKind kind) {
  switch (kind) {
    case WeightKind::encoder:
      return "an encoder";
    case WeightKind::decoder:
      return "a decoder";
    case WeightKind::projection:
      return "a projection";
  }
  return "something unknown";
}

// A packed tensor of `numbers` numbers behind its header, like `like` in dtype, with the header written.
template <typename T>
Tensor new_packed(const Tensor& like, WeightKind kind, int64_t layers, int64_t width, int64_t feed_width,
                  int64_t numbers) {
  const int64_t all = panel_width<T> + numbers;
  const Tensor packed = torch::stable::new_empty(like, {all}, like.scalar_type());
  const PackedHeader header{PackedHeader::right_magic,
                            PackedHeader::right_version,
                            int32_t(kind),
                            sizeof(T),
                            0,
                            layers,
                            width,
                            feed_width,
                            all};
  std::memcpy(mutable_data_of<T>(packed), &header, sizeof(header));
  return packed;
}

// What follows the header.
template <typename T>
const T* packed_data(const Tensor& packed) {
  return data_of<T>(packed) + panel_width<T>;
}

// The checksum of what follows the header.
inline uint64_t checksum_of(const Tensor& packed, int64_t bytes) {
  return cpu_kernels().checksum(static_cast<const char*>(packed.const_data_ptr()) + sizeof(PackedHeader),
                                packed.numel() * bytes - int64_t(sizeof(PackedHeader)));
}

// Writes the checksum into the header, when all numbers are there.
template <typename T>
void seal(const Tensor& packed) {
  const uint64_t checksum = checksum_of(packed, sizeof(T));
  std::memcpy(mutable_data_of<char>(packed) + offsetof(PackedHeader, checksum), &checksum, sizeof(checksum));
}

// Compares the checksum, but not again for a tensor that was seen whole: the last ones are remembered by their place in
// memory. A tensor that takes the place has another checksum, or the same numbers, if it is whole itself: what changes
// later, or is damaged and lies where its original was, is not told.
inline void check_numbers(const Tensor& packed, const PackedHeader& header) {
  struct Seen {
    const void* data;
    int64_t numbers;
    uint64_t checksum;
    bool operator==(const Seen&) const = default;
  };
  static std::mutex mutex;
  static std::array<Seen, 64> all{};
  static size_t next = 0;
  const Seen own{packed.const_data_ptr(), header.numbers, header.checksum};
  {
    const std::lock_guard lock(mutex);
    for (const Seen& seen : all) {
      if (seen == own) return;
    }
  }
  STD_TORCH_CHECK(checksum_of(packed, header.number_bytes) == header.checksum,
                  "packed must hold the numbers that were packed, some were changed: pack the weights again");
  const std::lock_guard lock(mutex);
  all[next++ % all.size()] = own;
}

// The header of packed weights, if they are of this kind and whole.
inline PackedHeader checked_header(const Tensor& packed, WeightKind kind) {
  const int64_t bytes = with_number_type(packed, "packed", [](auto* type) { return int64_t(sizeof(*type)); });
  STD_TORCH_CHECK(packed.dim() == 1 && packed.is_contiguous(), "packed must be packed weights, a contiguous vector");
  STD_TORCH_CHECK(packed.numel() * bytes >= int64_t(sizeof(PackedHeader)), "packed must be packed weights, got ",
                  packed.numel(), " numbers, too few for their header");
  PackedHeader header;
  std::memcpy(&header, packed.const_data_ptr(), sizeof(header));
  STD_TORCH_CHECK(header.magic == PackedHeader::right_magic,
                  "packed must be packed weights, got a tensor without their header");
  STD_TORCH_CHECK(header.version == PackedHeader::right_version, "packed must be packed weights of version ",
                  PackedHeader::right_version, ", got version ", header.version, ": pack them again");
  STD_TORCH_CHECK(header.kind == int32_t(kind), "packed must be the weights of ", name_of(kind), ", got those of ",
                  name_of(WeightKind(header.kind)));
  STD_TORCH_CHECK(header.layers > 0 && header.width > 0 && header.feed_width > 0 && header.layers < 1 << 20 &&
                      header.width < 1 << 24 && header.feed_width < 1 << 24,
                  "packed must be packed weights, got a header with sizes out of range");
  STD_TORCH_CHECK(header.number_bytes == bytes && header.numbers == packed.numel(), "packed must be whole, got ",
                  packed.numel(), " of ", header.numbers, " numbers");
  check_numbers(packed, header);
  return header;
}

// Sizes of a transformer, from its packed weights if it has them, which then must fit the list, if that is not empty.
// The list may be empty with packed weights: handing over a hundred tensors costs as much as a layer's work on a short
// list. `like` (..., D) is what the transformer works on.
TransformerShape shape_of(WeightKind kind, const std::vector<Tensor>& weights, const std::optional<Tensor>& packed,
                          int64_t heads, bool norm_first, int64_t slots, const Tensor& like);

// The packed weights as given, or packed now.
Tensor packed_or_new(const TransformerShape& shape, const std::vector<Tensor>& weights,
                     const std::optional<Tensor>& packed);

// A single row is shared by the threads; of more rows, each thread takes its own.
Workers workers_for(int64_t rows);

// What other ops call.
Tensor encode(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads, bool norm_first,
              const Tensor& x, const Tensor& mask);
Tensor project(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& packed);

}  // namespace softrank

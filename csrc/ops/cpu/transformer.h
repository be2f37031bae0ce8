// The transformer on raw pointers: shapes, how weights and caches are laid out, and the work of one tile of rows.
//
// A tile is a group of batch rows that one thread takes through all places, so that nothing waits for other threads and
// the tile's caches stay near the core. Rows are independent: a row's numbers do not depend on the tile that it is in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "row_kernels.h"

namespace softrank {

// What weights belong to; the number stands in the header of packed weights.
enum class WeightKind : int64_t { encoder = 1, decoder = 2, projection = 3 };

struct TransformerShape {
  WeightKind kind;
  int64_t layers, model_width, feed_width, heads, slots;
  bool norm_first;

  int64_t head_width() const { return model_width / heads; }
};

// Rows that a tile has at most, and tokens that pass through the layers together at most.
constexpr int64_t most_tile_rows = 32;
constexpr int64_t most_tokens = 64;

// The constraints of rows; these two are compiled once for all instruction sets (decoder_ops.cpp).
class RowConstraints;
// Which real slots, by number, may be picked next in a row; null if finding out would take too long.
const bool* next_picks(RowConstraints* rows, int64_t row);
void add_pick(RowConstraints* rows, int64_t row, int64_t number);

// Who works on one tile: run(parts, body, context) calls body(context, part) for each part, at once where threads are
// free. A single thread has parts = 1.
struct Workers {
  int64_t parts;
  void (*run)(int64_t parts, void (*body)(void* context, int64_t part), void* context);
};
constexpr int64_t most_parts = 8;

// Functions here have internal linkage: each instruction set's file keeps its own copy, and none runs another's.
namespace {

// Numbers of T in 64 bytes: the width of a panel of packed weights, and what all row lengths are rounded up to.
template <typename T>
constexpr int64_t panel_width = 64 / sizeof(T);

template <typename T>
constexpr int64_t padded(int64_t n) {
  return (n + panel_width<T> - 1) / panel_width<T> * panel_width<T>;
}

// The parts of a layer, each a weight and a bias, in the order of the lists of weights: the table of
// `softrank_ext/ops/layers.py`, with which a test compares it. An encoder has no memory to attend to.
enum Part {
  self_norm,
  self_qkv,
  self_out,
  memory_norm,
  memory_query,
  memory_key_value,
  memory_out,
  feed_norm,
  feed_in,
  feed_out,
  all_parts
};
enum class Size { none, width, two_widths, three_widths, feed };
struct PartInfo {
  const char* name;
  Size outputs, inputs;  // of a matrix; a norm has no inputs
};
constexpr PartInfo part_infos[all_parts] = {
    {"self_norm", Size::width, Size::none},     {"self_qkv", Size::three_widths, Size::width},
    {"self_out", Size::width, Size::width},     {"memory_norm", Size::width, Size::none},
    {"memory_query", Size::width, Size::width}, {"memory_key_value", Size::two_widths, Size::width},
    {"memory_out", Size::width, Size::width},   {"feed_norm", Size::width, Size::none},
    {"feed_in", Size::feed, Size::width},       {"feed_out", Size::width, Size::feed},
};

constexpr bool has_part(WeightKind kind, int part) {
  return kind == WeightKind::decoder || part < memory_norm || part > memory_out;
}

constexpr int64_t tensors_per_layer(WeightKind kind) {
  int64_t count = 0;
  for (int part = 0; part < all_parts; ++part) count += has_part(kind, part) ? 2 : 0;
  return count;
}

inline int64_t size_of(const TransformerShape& shape, Size size) {
  switch (size) {
    case Size::none:
      return 0;
    case Size::width:
      return shape.model_width;
    case Size::two_widths:
      return 2 * shape.model_width;
    case Size::three_widths:
      return 3 * shape.model_width;
    case Size::feed:
      return shape.feed_width;
  }
  return 0;
}

// A matrix (outputs x inputs) packed in panels of panel_width outputs, input by input, followed by its bias,
// zero-padded.
template <typename T>
constexpr int64_t packed_matrix_numbers(int64_t outputs, int64_t inputs) {
  return padded<T>(outputs) * (inputs + 1);
}

// Where the parts of a layer stand in its packed weights, in numbers from the layer's start.
template <typename T>
struct LayerLayout {
  int64_t at[all_parts], size;

  explicit LayerLayout(const TransformerShape& shape) : size(0) {
    for (int part = 0; part < all_parts; ++part) {
      at[part] = size;
      if (!has_part(shape.kind, part)) continue;
      const int64_t outputs = size_of(shape, part_infos[part].outputs),
                    inputs = size_of(shape, part_infos[part].inputs);
      const bool is_norm = part_infos[part].inputs == Size::none;
      size += padded<T>(is_norm ? 2 * outputs : packed_matrix_numbers<T>(outputs, inputs));
    }
  }
};

// Packed layers, then the final norm.
template <typename T>
int64_t packed_layers_numbers(const TransformerShape& shape) {
  return shape.layers * LayerLayout<T>(shape).size + padded<T>(2 * shape.model_width);
}

// The caches of one row: per layer keys and values of the prefix, then keys and values of the memory. Keys are
// (head, channel, position), so that vectors run along positions; values are (head, position, channel).
template <typename T>
struct CacheLayout {
  int64_t keys, values, layer, row;

  explicit CacheLayout(const TransformerShape& shape) {
    keys = shape.heads * shape.head_width() * padded<T>(shape.slots);
    values = shape.heads * shape.slots * padded<T>(shape.head_width());
    layer = 2 * (keys + values);
    row = shape.layers * layer;
  }
};

// Rows of a tile for this shape. Each step reads the tile's caches once, so they should stay near the core: a few
// megabytes. But it reads all weights too, so there should be rows to share them, and the matrix products want some.
template <typename T>
int64_t tile_rows(const TransformerShape& shape) {
  constexpr int64_t cache_bytes = 4 << 20, fewest = 6;
  const int64_t fitting = cache_bytes / (CacheLayout<T>(shape).row * int64_t(sizeof(T)) + 1);
  return fitting < fewest ? fewest : fitting > most_tile_rows ? most_tile_rows : fitting;
}

// Time of a pass over so many tokens, in units of one more token (about 24 microseconds at width 128): the weights must
// come from the outer cache in any case, and the products with one or two tokens hide behind that. Parts that work at
// once share the tokens, and have to wait for each other.
inline double pass_time(int64_t tokens, int64_t parts) {
  const double shared = parts > 1 ? 1.5 + double(tokens) / double(parts) : 0.4 + double(tokens);
  return shared < 3 ? 3 : shared;
}

// Places of a draft to try in one pass with each of `rows` rows, if a place of the draft is right with probability
// `right`: the number that makes the time per pick least. A pass yields picks up to the first that the draft has wrong.
// `choices`: picks that are left, at most, in a row. A single row takes them all if the pass is then likely the last.
inline int64_t places_to_try(int64_t rows, double right, int64_t parts, int64_t choices) {
  int64_t places = 1;
  double chance = 1, picks = 1, picks_tried = 1, least = pass_time(rows, parts), time_all = 0;
  for (int64_t more = 2; more <= choices && rows * more <= most_tokens; ++more) {
    chance *= right;
    picks_tried += chance;
    const double time = pass_time(rows * more, parts);
    if (more == places + 1 && time < least * picks_tried) {
      least = time / picks_tried;
      picks = picks_tried;
      places = more;
    }
    if (rows == 1 && more == choices) {
      time_all = time + (1 - chance) * std::max(pass_time(1, parts), (double(choices) - picks_tried) * least);
    }
  }
  const double time = pass_time(places, parts) + std::max(pass_time(1, parts), (double(choices) - picks) * least);
  return time_all > 0 && time_all < time ? choices : places;
}

}  // namespace

// What `decode_tile` reads and writes; rows count from the tile's first. Pointers that may be null say so.
template <typename T>
struct DecodeTile {
  int64_t rows;
  const T* memory;        // (rows, N, D)
  const T* tokens;        // (rows, N, D)
  const T* start;         // (rows, D)
  const T* places;        // (N, D)
  const T* head_keys;     // (rows or 1, N, D)
  const T* head_bias;     // (rows or 1, N)
  bool is_head_shared;    // one head for all rows
  const bool* mask;       // (rows, N)
  const T* uniform;       // (rows, N), or null: greedy
  const int64_t* forced;  // (rows, N), or null
  int64_t forced_places;  // leading places that are forced
  const int64_t* draft;   // (rows, N), or null
  T temperature;
  int64_t* order;               // (rows, N)
  T* log_probs;                 // (rows, N)
  int64_t* work;                // (rows, 2): passes and places run
  int64_t* real_slots;          // (rows, N) scratch
  int64_t* upcoming;            // (rows, N) scratch
  bool* remaining;              // (rows, N) scratch
  RowConstraints* constraints;  // (rows), begun; or null
};

// Positions that `advance_tile` appends to the caches of a tile.
template <typename T>
struct AdvanceTile {
  int64_t rows, positions;
  T* cache;                // (rows, CacheLayout::row)
  const T* inputs;         // (rows, positions, D)
  const int64_t* lengths;  // (rows): positions already in the cache
  const bool* mask;        // (rows, N)
  T* states;               // (rows, positions, D): outputs of the final norm
};

template <typename T>
struct TransformerKernels {
  // Lay out the weights of the list for the other functions, layers first to end - 1 of them; `packed` has
  // packed_layers_numbers.
  void (*pack_layers)(const TransformerShape& shape, const T* const* weights, int64_t first, int64_t end, T* packed);
  // Encode `rows` rows: x and memory are (rows, N, D), 0 at padding. `scratch` has encoder_scratch_numbers.
  void (*encode_rows)(const TransformerShape& shape, const T* packed, int64_t rows, const T* x, const bool* mask,
                      T* memory, T* scratch, const Workers& workers);
  int64_t (*encoder_scratch_numbers)(const TransformerShape& shape, int64_t parts);
  // out (rows, outputs) = x (rows, inputs) times the transpose of weight (outputs, inputs); `packed` has
  // packed_matrix_numbers, `product` room for most_tokens rows of padded outputs.
  void (*pack_projection)(const T* weight, int64_t outputs, int64_t inputs, T* packed);
  void (*project)(const T* packed, int64_t rows, const T* x, int64_t outputs, int64_t inputs, T* out, T* product);
  // Numbers of scratch that one thread needs for the functions below.
  int64_t (*scratch_numbers)(const TransformerShape& shape);
  // Decode a tile; `cache` has room for most_tile_rows rows. Returns the first failure.
  PickFailure (*decode_tile)(const TransformerShape& shape, const T* packed, const DecodeTile<T>& tile, T* cache,
                             T* scratch, const Workers& workers);
  // Fill the memory part of the caches of `rows` rows.
  void (*open_tile)(const TransformerShape& shape, const T* packed, int64_t rows, const T* memory, const bool* mask,
                    T* cache, T* scratch);
  void (*advance_tile)(const TransformerShape& shape, const T* packed, const AdvanceTile<T>& tile, T* scratch);
};

}  // namespace softrank

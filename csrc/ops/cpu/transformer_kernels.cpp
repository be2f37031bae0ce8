// CPU kernels of the encoder and the cached decoder; compiled once per instruction set (SOFTRANK_ISA names it).
//
// Every output number is one chain of multiply-adds over its inputs in a fixed order, whatever the number of rows that
// are worked on together: a row's result has the same bits in any batch.
#include <cmath>

#include "cpu_kernels.h"
#include "isa_kernels.h"
#include "vector.h"

namespace softrank {
namespace {

template <typename T>
constexpr int64_t panel_vectors = panel_width<T> / lanes<T>;

// Accumulators that stay in registers beside the operands.
#if defined(__AVX512F__)
constexpr int64_t accumulators = 24;
#else
constexpr int64_t accumulators = 12;
#endif

template <typename T>
constexpr int64_t most_rows = accumulators / panel_vectors<T> < 12 ? accumulators / panel_vectors<T> : 12;

// What becomes of a product: written, written with negatives cut off, or added to what is there.
enum class Store { plain, relu, add };

// Rows x (Panels * panel_width) outputs: a (Rows, inputs) times packed panels, starting from the bias.
template <typename T, int64_t Rows, int64_t Panels, Store store_as>
inline void multiply_block(const T* a, int64_t a_stride, const T* panels, const T* bias, int64_t inputs, T* out,
                           int64_t out_stride) {
  constexpr int64_t vectors = Panels * panel_vectors<T>;
  Vector<T> sum[Rows][vectors];
  for (int64_t v = 0; v < vectors; ++v) {
    const Vector<T> b = load(bias + v * lanes<T>);
    for (int64_t r = 0; r < Rows; ++r) sum[r][v] = b;
  }
  for (int64_t k = 0; k < inputs; ++k) {
    Vector<T> weight[vectors];
    for (int64_t v = 0; v < vectors; ++v) {
      const int64_t panel = v / panel_vectors<T>, part = v % panel_vectors<T>;
      weight[v] = load(panels + (panel * inputs + k) * panel_width<T> + part * lanes<T>);
    }
    for (int64_t r = 0; r < Rows; ++r) {
      const Vector<T> x = broadcast(a[r * a_stride + k]);
      for (int64_t v = 0; v < vectors; ++v) sum[r][v] += x * weight[v];
    }
  }
  for (int64_t r = 0; r < Rows; ++r) {
    for (int64_t v = 0; v < vectors; ++v) {
      T* to = out + r * out_stride + v * lanes<T>;
      Vector<T> value = sum[r][v];
      if constexpr (store_as == Store::relu) value = value > T(0) ? value : Vector<T>{};
      if constexpr (store_as == Store::add) value += load(to);
      store<T>(to, value);
    }
  }
}

template <typename T, int64_t Rows, Store store_as>
inline void multiply_rows(const T* a, int64_t a_stride, const T* matrix, int64_t outputs, int64_t inputs, T* out,
                          int64_t out_stride, int64_t first_panel, int64_t end_panel) {
  constexpr int64_t fitting = accumulators / (Rows * panel_vectors<T>);
  constexpr int64_t together = fitting < 1 ? 1 : (fitting > 4 ? 4 : fitting);
  const T* bias = matrix + padded<T>(outputs) * inputs;
  int64_t panel = first_panel;
  for (; panel + together <= end_panel; panel += together) {
    const int64_t column = panel * panel_width<T>;
    multiply_block<T, Rows, together, store_as>(a, a_stride, matrix + column * inputs, bias + column, inputs,
                                                out + column, out_stride);
  }
  for (; panel < end_panel; ++panel) {
    const int64_t column = panel * panel_width<T>;
    multiply_block<T, Rows, 1, store_as>(a, a_stride, matrix + column * inputs, bias + column, inputs, out + column,
                                         out_stride);
  }
}

template <typename T, Store store_as, int64_t Rows = most_rows<T>>
inline void multiply_group(int64_t rows, const T* a, int64_t a_stride, const T* matrix, int64_t outputs, int64_t inputs,
                           T* out, int64_t out_stride, int64_t first_panel, int64_t end_panel) {
  if constexpr (Rows > 1) {
    if (rows < Rows) {
      multiply_group<T, store_as, Rows - 1>(rows, a, a_stride, matrix, outputs, inputs, out, out_stride, first_panel,
                                            end_panel);
      return;
    }
  }
  multiply_rows<T, Rows, store_as>(a, a_stride, matrix, outputs, inputs, out, out_stride, first_panel, end_panel);
}

// out = a . matrix^T + bias for `rows` rows. A few panels at a time stay in the first-level cache for all rows, and
// rows go in groups of nearly equal size.
template <typename T, Store store_as>
void multiply(const T* a, int64_t rows, int64_t a_stride, const T* matrix, int64_t outputs, int64_t inputs, T* out,
              int64_t out_stride) {
  const int64_t panels = padded<T>(outputs) / panel_width<T>;
  const int64_t groups = (rows + most_rows<T> - 1) / most_rows<T>;
  const int64_t step = groups == 1 ? panels : 1;
  for (int64_t panel = 0; panel < panels; panel += step) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t first = rows * group / groups, end = rows * (group + 1) / groups;
      multiply_group<T, store_as>(end - first, a + first * a_stride, a_stride, matrix, outputs, inputs,
                                  out + first * out_stride, out_stride, panel, panel + step);
    }
  }
}

// out = (x - mean) / deviation * weight + bias for each row; `norm` holds weight, then bias. out may be x.
template <typename T>
void layer_norm(const T* x, int64_t rows, int64_t stride, int64_t width, const T* norm, T* out, int64_t out_stride) {
  const int64_t whole = width / lanes<T> * lanes<T>;
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = x + r * stride;
    T* to = out + r * out_stride;
    Vector<T> sums{};
    for (int64_t i = 0; i < whole; i += lanes<T>) sums += load(from + i);
    T sum = horizontal_sum<T>(sums);
    for (int64_t i = whole; i < width; ++i) sum += from[i];
    const T mean = sum / T(width);
    Vector<T> squares{};
    for (int64_t i = 0; i < whole; i += lanes<T>) {
      const Vector<T> centred = load(from + i) - mean;
      squares += centred * centred;
    }
    T square = horizontal_sum<T>(squares);
    for (int64_t i = whole; i < width; ++i) square += (from[i] - mean) * (from[i] - mean);
    const T scale = T(1) / std::sqrt(square / T(width) + T(1e-5));
    for (int64_t i = 0; i < whole; i += lanes<T>) {
      store<T>(to + i, (load(from + i) - mean) * scale * load(norm + i) + load(norm + width + i));
    }
    for (int64_t i = whole; i < width; ++i) to[i] = (from[i] - mean) * scale * norm[i] + norm[width + i];
  }
}

// Attention of one query to `length` >= 1 positions, one head. keys: (channel, position) of stride key_stride; values:
// (position, channel) of stride value_stride; `weights` has room for the padded positions.
template <typename T>
inline void attend(const T* query, const T* keys, int64_t key_stride, const T* values, int64_t value_stride,
                   int64_t length, int64_t channels, T scale, T* weights, T* out) {
  constexpr int64_t together = 4;
  const int64_t end = (length + lanes<T> - 1) / lanes<T> * lanes<T>;
  Vector<T> tops = broadcast(T(-INFINITY));
  int64_t position = 0;
  const auto score = [&]<int64_t Count>() {
    Vector<T> sum[Count]{};
    for (int64_t c = 0; c < channels; ++c) {
      const Vector<T> q = broadcast(query[c] * scale);
      for (int64_t v = 0; v < Count; ++v) sum[v] += q * load(keys + c * key_stride + position + v * lanes<T>);
    }
    for (int64_t v = 0; v < Count; ++v) store<T>(weights + position + v * lanes<T>, sum[v]);
    position += Count * lanes<T>;
  };
  while (position + together * lanes<T> <= end) score.template operator()<together>();
  while (position < end) score.template operator()<1>();
  for (int64_t i = length; i < end; ++i) weights[i] = T(-INFINITY);
  for (int64_t i = 0; i < end; i += lanes<T>) {
    const Vector<T> value = load(weights + i);
    tops = value > tops ? value : tops;
  }
  const T top = horizontal_max<T>(tops);
  Vector<T> totals{};
  for (int64_t i = 0; i < end; i += lanes<T>) {
    const Vector<T> weight = exp_nonpositive(load(weights + i) - top);
    store<T>(weights + i, weight);
    totals += weight;
  }
  const T inverse_total = T(1) / horizontal_sum<T>(totals);
  for (int64_t first = 0; first < channels; first += panel_width<T>) {
    // Several sets of sums, for positions by remainder, hide the latency of the additions.
    constexpr int64_t sets = 8 / panel_vectors<T> < 4 ? 8 / panel_vectors<T> : 4;
    Vector<T> sums[sets][panel_vectors<T>]{};
    int64_t i = 0;
    for (; i + sets <= length; i += sets) {
      for (int64_t set = 0; set < sets; ++set) {
        const Vector<T> weight = broadcast(weights[i + set]);
        const T* value = values + (i + set) * value_stride + first;
        for (int64_t v = 0; v < panel_vectors<T>; ++v) sums[set][v] += weight * load(value + v * lanes<T>);
      }
    }
    for (; i < length; ++i) {
      const Vector<T> weight = broadcast(weights[i]);
      const T* value = values + i * value_stride + first;
      for (int64_t v = 0; v < panel_vectors<T>; ++v) sums[0][v] += weight * load(value + v * lanes<T>);
    }
    for (int64_t set = 1; set < sets; ++set) {
      for (int64_t v = 0; v < panel_vectors<T>; ++v) sums[0][v] += sums[set][v];
    }
    if (first + panel_width<T> <= channels) {
      for (int64_t v = 0; v < panel_vectors<T>; ++v) {
        store<T>(out + first + v * lanes<T>, sums[0][v] * inverse_total);
      }
    } else {
      T last[panel_width<T>];
      for (int64_t v = 0; v < panel_vectors<T>; ++v) store<T>(last + v * lanes<T>, sums[0][v] * inverse_total);
      for (int64_t c = first; c < channels; ++c) out[c] = last[c - first];
    }
  }
}

// Tokens that pass through the layers together: which row of the tile each belongs to and at which position it stands.
struct TokenList {
  int64_t count;
  int64_t row[most_tokens], position[most_tokens];
};

// Scratch of one thread, cut from one allocation.
template <typename T>
struct Scratch {
  T *x, *normed, *projected, *attended, *hidden, *weights, *scores, *head_keys, *pick_weights;

  static int64_t layout(const TransformerShape& shape, T* base, Scratch* scratch) {
    const int64_t width = padded<T>(shape.model_width), tokens = most_tokens;
    int64_t at = 0;
    const auto take = [&](int64_t numbers, T* Scratch::* part) {
      if (scratch != nullptr) scratch->*part = base + at;
      at += padded<T>(numbers);
    };
    take(tokens * width, &Scratch::x);
    take(tokens * width, &Scratch::normed);
    take(tokens * padded<T>(3 * shape.model_width), &Scratch::projected);
    take(tokens * width, &Scratch::attended);
    take(tokens * padded<T>(shape.feed_width), &Scratch::hidden);
    take(padded<T>(shape.slots), &Scratch::weights);
    take(padded<T>(shape.slots), &Scratch::scores);
    take(most_tile_rows * shape.model_width * padded<T>(shape.slots), &Scratch::head_keys);
    take(padded<T>(shape.slots), &Scratch::pick_weights);
    return at;
  }
};

template <typename T>
int64_t scratch_numbers(const TransformerShape& shape) {
  return Scratch<T>::layout(shape, nullptr, nullptr);
}

// Writes the key and value of one position into a row's cache part at `keys`, `values`.
template <typename T>
inline void write_key_value(const TransformerShape& shape, const T* key, const T* value, int64_t position, T* keys,
                            T* values) {
  const int64_t channels = shape.head_width(), key_stride = padded<T>(shape.slots);
  const int64_t value_stride = padded<T>(channels);
  for (int64_t c = 0; c < shape.model_width; ++c) keys[c * key_stride + position] = key[c];
  for (int64_t head = 0; head < shape.heads; ++head) {
    T* to = values + (head * shape.slots + position) * value_stride;
    for (int64_t c = 0; c < channels; ++c) to[c] = value[head * channels + c];
    for (int64_t c = channels; c < value_stride; ++c) to[c] = T(0);
  }
}

// Attention of all heads of one token; query and out are (D).
template <typename T>
inline void attend_heads(const TransformerShape& shape, const T* query, const T* keys, const T* values, int64_t length,
                         T* weights, T* out) {
  const int64_t channels = shape.head_width(), key_stride = padded<T>(shape.slots);
  const int64_t value_stride = padded<T>(channels);
  const T scale = T(1) / std::sqrt(T(channels));
  for (int64_t head = 0; head < shape.heads; ++head) {
    attend(query + head * channels, keys + head * channels * key_stride, key_stride,
           values + head * shape.slots * value_stride, value_stride, length, channels, scale, weights,
           out + head * channels);
  }
}

// Takes the tokens in scratch.x through all layers, appending to the caches, and leaves the final norm's output in
// scratch.normed. memory_sizes: real slots per row of the tile.
template <typename T>
void run_layers(const TransformerShape& shape, const T* packed, const TokenList& tokens, const int64_t* memory_sizes,
                T* cache, const Scratch<T>& scratch) {
  const DecoderLayout<T> part(shape);
  const CacheLayout<T> layout(shape);
  const int64_t width = shape.model_width, stride = padded<T>(width), qkv_stride = padded<T>(3 * width);
  const int64_t feed = shape.feed_width, feed_stride = padded<T>(feed);
  const int64_t count = tokens.count;
  // A sublayer reads x through its norm and adds to x, or reads x, adds, and is followed by its norm.
  const auto before = [&](const T* norm) -> const T* {
    if (!shape.norm_first) return scratch.x;
    layer_norm(scratch.x, count, stride, width, norm, scratch.normed, stride);
    return scratch.normed;
  };
  const auto after = [&](const T* norm) {
    if (!shape.norm_first) layer_norm(scratch.x, count, stride, width, norm, scratch.x, stride);
  };
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const T* weights = packed + layer * part.size;
    T* layer_cache = cache + layer * layout.layer;

    multiply<T, Store::plain>(before(weights + part.self_norm), count, stride, weights + part.self_qkv, 3 * width,
                              width, scratch.projected, qkv_stride);
    for (int64_t m = 0; m < count; ++m) {
      T* keys = layer_cache + tokens.row[m] * layout.row;
      const T* qkv = scratch.projected + m * qkv_stride;
      write_key_value(shape, qkv + width, qkv + 2 * width, tokens.position[m], keys, keys + layout.keys);
    }
    for (int64_t m = 0; m < count; ++m) {
      const T* keys = layer_cache + tokens.row[m] * layout.row;
      attend_heads(shape, scratch.projected + m * qkv_stride, keys, keys + layout.keys, tokens.position[m] + 1,
                   scratch.weights, scratch.attended + m * stride);
    }
    multiply<T, Store::add>(scratch.attended, count, stride, weights + part.self_out, width, width, scratch.x, stride);
    after(weights + part.self_norm);

    multiply<T, Store::plain>(before(weights + part.memory_norm), count, stride, weights + part.memory_query, width,
                              width, scratch.projected, qkv_stride);
    for (int64_t m = 0; m < count; ++m) {
      const T* keys = layer_cache + tokens.row[m] * layout.row + layout.keys + layout.values;
      attend_heads(shape, scratch.projected + m * qkv_stride, keys, keys + layout.keys, memory_sizes[tokens.row[m]],
                   scratch.weights, scratch.attended + m * stride);
    }
    multiply<T, Store::add>(scratch.attended, count, stride, weights + part.memory_out, width, width, scratch.x,
                            stride);
    after(weights + part.memory_norm);

    multiply<T, Store::relu>(before(weights + part.feed_norm), count, stride, weights + part.feed_in, feed, width,
                             scratch.hidden, feed_stride);
    multiply<T, Store::add>(scratch.hidden, count, feed_stride, weights + part.feed_out, width, feed, scratch.x,
                            stride);
    after(weights + part.feed_norm);
  }
  layer_norm(scratch.x, count, stride, width, packed + shape.layers * part.size, scratch.normed, stride);
}

// Rows that are encoded together: enough tokens for the matrix products, at least one row.
inline int64_t rows_together(const TransformerShape& shape) {
  return shape.slots < most_tokens ? most_tokens / (shape.slots > 0 ? shape.slots : 1) : 1;
}

// Scratch of the encoder: whole rows of tokens, their queries, and the keys and values of one layer.
template <typename T>
struct EncoderScratch {
  T *x, *query, *keys, *normed, *projected, *hidden, *weights;

  static int64_t layout(const TransformerShape& shape, T* base, EncoderScratch* scratch) {
    const int64_t width = padded<T>(shape.model_width), rows = rows_together(shape), tokens = rows * shape.slots;
    const CacheLayout<T> cache(shape);
    int64_t at = 0;
    const auto take = [&](int64_t numbers, T* EncoderScratch::* part) {
      if (scratch != nullptr) scratch->*part = base + at;
      at += padded<T>(numbers);
    };
    take(tokens * width, &EncoderScratch::x);
    take(tokens * width, &EncoderScratch::query);
    take(rows * (cache.keys + cache.values), &EncoderScratch::keys);
    take(most_tokens * width, &EncoderScratch::normed);
    take(most_tokens * padded<T>(3 * shape.model_width), &EncoderScratch::projected);
    take(most_tokens * padded<T>(shape.feed_width), &EncoderScratch::hidden);
    take(padded<T>(shape.slots), &EncoderScratch::weights);
    return at;
  }
};

template <typename T>
int64_t encoder_scratch_numbers(const TransformerShape& shape) {
  return EncoderScratch<T>::layout(shape, nullptr, nullptr);
}

// One layer on the tokens of `rows` rows, sizes[row] of them each, one row after another in scratch.x.
template <typename T>
void encode_layer(const TransformerShape& shape, const T* weights, int64_t rows, const int64_t* sizes,
                  const EncoderScratch<T>& scratch) {
  const EncoderLayout<T> part(shape);
  const CacheLayout<T> layout(shape);
  const int64_t width = shape.model_width, stride = padded<T>(width), qkv_stride = padded<T>(3 * width);
  const int64_t feed = shape.feed_width, feed_stride = padded<T>(feed);
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) count += sizes[row];
  const auto for_chunks = [&](auto body) {
    for (int64_t first = 0; first < count; first += most_tokens) {
      body(first, count - first < most_tokens ? count - first : most_tokens);
    }
  };
  const auto for_tokens = [&](auto body) {
    for (int64_t row = 0, token = 0; row < rows; ++row) {
      T* keys = scratch.keys + row * (layout.keys + layout.values);
      for (int64_t i = 0; i < sizes[row]; ++i, ++token) body(token, i, sizes[row], keys, keys + layout.keys);
    }
  };
  const auto before = [&](const T* norm, int64_t first, int64_t chunk) -> const T* {
    T* x = scratch.x + first * stride;
    if (!shape.norm_first) return x;
    layer_norm(x, chunk, stride, width, norm, scratch.normed, stride);
    return scratch.normed;
  };
  const auto after = [&](const T* norm, int64_t first, int64_t chunk) {
    T* x = scratch.x + first * stride;
    if (!shape.norm_first) layer_norm(x, chunk, stride, width, norm, x, stride);
  };
  // 1. Queries, keys and values of all tokens.
  int64_t row = 0, in_row = 0;
  for_chunks([&](int64_t first, int64_t chunk) {
    multiply<T, Store::plain>(before(weights + part.self_norm, first, chunk), chunk, stride, weights + part.self_qkv,
                              3 * width, width, scratch.projected, qkv_stride);
    for (int64_t m = 0; m < chunk; ++m) {
      while (in_row == sizes[row]) ++row, in_row = 0;
      const T* qkv = scratch.projected + m * qkv_stride;
      T* keys = scratch.keys + row * (layout.keys + layout.values);
      std::memcpy(scratch.query + (first + m) * stride, qkv, width * sizeof(T));
      write_key_value(shape, qkv + width, qkv + 2 * width, in_row++, keys, keys + layout.keys);
    }
  });
  // 2. Attention within each row, in the queries' place.
  for_tokens([&](int64_t token, int64_t, int64_t size, const T* keys, const T* values) {
    T* query = scratch.query + token * stride;
    attend_heads(shape, query, keys, values, size, scratch.weights, query);
  });
  // 3. Output projection and feed-forward.
  for_chunks([&](int64_t first, int64_t chunk) {
    T* x = scratch.x + first * stride;
    multiply<T, Store::add>(scratch.query + first * stride, chunk, stride, weights + part.self_out, width, width, x,
                            stride);
    after(weights + part.self_norm, first, chunk);
    multiply<T, Store::relu>(before(weights + part.feed_norm, first, chunk), chunk, stride, weights + part.feed_in,
                             feed, width, scratch.hidden, feed_stride);
    multiply<T, Store::add>(scratch.hidden, chunk, feed_stride, weights + part.feed_out, width, feed, x, stride);
    after(weights + part.feed_norm, first, chunk);
  });
}

inline int64_t count_real(const bool* mask, int64_t n) {
  int64_t count = 0;
  for (int64_t slot = 0; slot < n; ++slot) count += mask[slot];
  return count;
}

template <typename T>
void encode_rows(const TransformerShape& shape, const T* packed, int64_t rows, const T* x, const bool* mask, T* memory,
                 T* scratch_numbers) {
  EncoderScratch<T> scratch;
  EncoderScratch<T>::layout(shape, scratch_numbers, &scratch);
  const int64_t n = shape.slots, width = shape.model_width, stride = padded<T>(width);
  const EncoderLayout<T> part(shape);
  for (int64_t first = 0; first < rows; first += rows_together(shape)) {
    const int64_t together = rows - first < rows_together(shape) ? rows - first : rows_together(shape);
    int64_t sizes[most_tokens], token = 0;
    for (int64_t row = 0; row < together; ++row) {
      sizes[row] = count_real(mask + (first + row) * n, n);
      for (int64_t slot = (first + row) * n; slot < (first + row + 1) * n; ++slot) {
        if (!mask[slot]) continue;
        std::memcpy(scratch.x + token * stride, x + slot * width, width * sizeof(T));
        for (int64_t c = width; c < stride; ++c) scratch.x[token * stride + c] = T(0);
        ++token;
      }
    }
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      encode_layer(shape, packed + layer * part.size, together, sizes, scratch);
    }
    layer_norm(scratch.x, token, stride, width, packed + shape.layers * part.size, scratch.x, stride);
    token = 0;
    for (int64_t slot = first * n; slot < (first + together) * n; ++slot) {
      T* to = memory + slot * width;
      if (mask[slot]) {
        std::memcpy(to, scratch.x + token++ * stride, width * sizeof(T));
      } else {
        std::memset(to, 0, width * sizeof(T));
      }
    }
  }
}

// Fills the memory keys and values of one row from its real slots, which close ranks: attention does not ask where a
// slot is.
template <typename T>
void open_row(const TransformerShape& shape, const T* packed, const T* memory, const bool* mask, T* cache,
              const Scratch<T>& scratch) {
  const DecoderLayout<T> part(shape);
  const CacheLayout<T> layout(shape);
  const int64_t width = shape.model_width, stride = padded<T>(2 * width);
  int64_t done = 0;
  for (int64_t slot = 0; slot < shape.slots;) {
    int64_t count = 0;
    for (; slot < shape.slots && count < most_tokens; ++slot) {
      if (!mask[slot]) continue;
      std::memcpy(scratch.x + count * width, memory + slot * width, width * sizeof(T));
      ++count;
    }
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      multiply<T, Store::plain>(scratch.x, count, width, packed + layer * part.size + part.memory_key_value, 2 * width,
                                width, scratch.projected, stride);
      T* keys = cache + layer * layout.layer + layout.keys + layout.values;
      for (int64_t m = 0; m < count; ++m) {
        const T* key = scratch.projected + m * stride;
        write_key_value(shape, key, key + width, done + m, keys, keys + layout.keys);
      }
    }
    done += count;
  }
}

template <typename T>
void open_tile(const TransformerShape& shape, const T* packed, int64_t rows, const T* memory, const bool* mask,
               T* cache, T* scratch_numbers) {
  Scratch<T> scratch;
  Scratch<T>::layout(shape, scratch_numbers, &scratch);
  const CacheLayout<T> layout(shape);
  for (int64_t row = 0; row < rows; ++row) {
    open_row(shape, packed, memory + row * shape.slots * shape.model_width, mask + row * shape.slots,
             cache + row * layout.row, scratch);
  }
}

template <typename T>
void advance_tile(const TransformerShape& shape, const T* packed, const AdvanceTile<T>& tile, T* scratch_numbers) {
  Scratch<T> scratch;
  Scratch<T>::layout(shape, scratch_numbers, &scratch);
  const int64_t width = shape.model_width, stride = padded<T>(width);
  int64_t memory_sizes[most_tile_rows];
  for (int64_t row = 0; row < tile.rows; ++row)
    memory_sizes[row] = count_real(tile.mask + row * shape.slots, shape.slots);
  TokenList tokens{};
  int64_t at[most_tokens];
  const auto flush = [&] {
    run_layers(shape, packed, tokens, memory_sizes, tile.cache, scratch);
    for (int64_t m = 0; m < tokens.count; ++m) {
      std::memcpy(tile.states + at[m] * width, scratch.normed + m * stride, width * sizeof(T));
    }
    tokens.count = 0;
  };
  // Position by position, so that a token's predecessors are in the cache or pass together with it.
  for (int64_t position = 0; position < tile.positions; ++position) {
    for (int64_t row = 0; row < tile.rows; ++row) {
      if (memory_sizes[row] == 0) continue;
      const int64_t m = tokens.count++;
      at[m] = row * tile.positions + position;
      tokens.row[m] = row;
      tokens.position[m] = tile.lengths[row] + position;
      std::memcpy(scratch.x + m * stride, tile.inputs + at[m] * width, width * sizeof(T));
      for (int64_t c = width; c < stride; ++c) scratch.x[m * stride + c] = T(0);
      if (tokens.count == most_tokens) flush();
    }
  }
  if (tokens.count > 0) flush();
}

// Head keys as (channel, slot) over the real slots of a row, so that the scores of many slots are one vector.
template <typename T>
void transpose_head_keys(const TransformerShape& shape, const T* head_keys, const int64_t* slots, int64_t count,
                         T* out) {
  const int64_t width = shape.model_width, stride = padded<T>(shape.slots);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < width; ++c) out[c * stride + i] = head_keys[slots[i] * width + c];
  }
  for (int64_t c = 0; c < width; ++c) {
    for (int64_t i = count; i < stride; ++i) out[c * stride + i] = T(0);
  }
}

// scores[i] = (state . keys[:, i]) for the padded slots.
template <typename T>
inline void score_slots(const T* state, const T* keys, int64_t width, int64_t stride, int64_t count, T* scores) {
  constexpr int64_t together = 4;
  int64_t first = 0;
  const auto block = [&]<int64_t Count>() {
    Vector<T> sum[Count]{};
    for (int64_t c = 0; c < width; ++c) {
      const Vector<T> s = broadcast(state[c]);
      for (int64_t v = 0; v < Count; ++v) sum[v] += s * load(keys + c * stride + first + v * lanes<T>);
    }
    for (int64_t v = 0; v < Count; ++v) store<T>(scores + first + v * lanes<T>, sum[v]);
    first += Count * lanes<T>;
  };
  while (first + together * lanes<T> <= stride && first < count) block.template operator()<together>();
  while (first < count) block.template operator()<1>();
}

// The state of one row while it is decoded. Real slots are numbered in index order; `remaining` and `upcoming` speak of
// these numbers.
struct RowProgress {
  int64_t* slots;     // real slots by number
  bool* remaining;    // which may still be picked
  int64_t* upcoming;  // those that remain, in the draft's order; null without a draft
  int64_t count;      // real slots
  int64_t place;      // the next to decide
  int64_t last;       // the pick before it
  int64_t block;      // places to try in the next pass
};

// A row's part of a pass: its tokens begin at `token` and are for `length` places from the row's next one on.
struct PassPart {
  int64_t row, token, length;
};

template <typename T>
class TileDecoder {
 public:
  TileDecoder(const TransformerShape& shape, const T* packed, const DecodeTile<T>& tile, T* cache, T* scratch_numbers)
      : shape_(shape), packed_(packed), tile_(tile), cache_(cache), n_(shape.slots), width_(shape.model_width) {
    Scratch<T>::layout(shape, scratch_numbers, &scratch_);
  }

  PickFailure run() {
    for (int64_t row = 0; row < tile_.rows; ++row) begin_row(row);
    // Rows with a choice left go through passes together, as many as there is room for.
    for (bool is_unfinished = true; is_unfinished;) {
      is_unfinished = false;
      tokens_.count = parts_ = 0;
      for (int64_t row = 0; row < tile_.rows; ++row) {
        const RowProgress& own = progress_[row];
        const int64_t choices = own.count - 1 - own.place;
        if (choices <= 0) continue;
        is_unfinished = true;
        const int64_t length = own.block < choices ? own.block : choices;
        if (tokens_.count + length > most_tokens && !run_pass()) return PickFailure::score_is_nan;
        add_tokens(row, length);
      }
      if (parts_ > 0 && !run_pass()) return PickFailure::score_is_nan;
    }
    for (int64_t row = 0; row < tile_.rows; ++row) take_last(row);
    return PickFailure::none;
  }

 private:
  void begin_row(int64_t row) {
    const bool* mask = tile_.mask + row * n_;
    RowProgress& own = progress_[row];
    own = {tile_.real_slots + row * n_, tile_.remaining + row * n_, nullptr, 0, 0, -1, 1};
    int64_t padding_place = count_real(mask, n_);
    for (int64_t slot = 0; slot < n_; ++slot) {
      if (mask[slot]) {
        own.remaining[own.count] = true;
        own.slots[own.count++] = slot;
      } else {
        tile_.order[row * n_ + padding_place++] = slot;
      }
      tile_.log_probs[row * n_ + slot] = T(0);
    }
    if (tile_.draft != nullptr) {
      own.upcoming = tile_.upcoming + row * n_;
      for (int64_t place = 0; place < own.count; ++place) {
        own.upcoming[place] = number_of(own, tile_.draft[row * n_ + place]);
      }
      own.block = first_block(tile_.rows);
    }
    tile_.work[2 * row] = tile_.work[2 * row + 1] = 0;
    memory_sizes_[row] = own.count;
    open_row(shape_, packed_, tile_.memory + row * n_ * width_, mask, cache_ + row * CacheLayout<T>(shape_).row,
             scratch_);
    transpose_head_keys(shape_, tile_.head_keys + (tile_.is_head_shared ? 0 : row * n_ * width_), own.slots, own.count,
                        head_keys_of(row));
  }

  static int64_t number_of(const RowProgress& own, int64_t slot) {
    int64_t low = 0, high = own.count - 1;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (own.slots[middle] < slot) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  T* head_keys_of(int64_t row) { return scratch_.head_keys + row * width_ * padded<T>(n_); }

  // Tokens for the row's next `length` places: after the first, as if the draft were right.
  void add_tokens(int64_t row, int64_t length) {
    const RowProgress& own = progress_[row];
    pass_[parts_++] = {row, tokens_.count, length};
    const int64_t stride = padded<T>(width_);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t place = own.place + i, m = tokens_.count++;
      const int64_t before = i == 0 ? own.last : own.upcoming[i - 1];
      tokens_.row[m] = row;
      tokens_.position[m] = place;
      const T* token = place == 0 ? tile_.start + row * width_ : tile_.tokens + (row * n_ + own.slots[before]) * width_;
      T* x = scratch_.x + m * stride;
      for (int64_t c = 0; c < width_; ++c) x[c] = token[c] + tile_.places[place * width_ + c];
      for (int64_t c = width_; c < stride; ++c) x[c] = T(0);
    }
  }

  // Takes the tokens through the layers and picks; false if a score is NaN.
  bool run_pass() {
    run_layers(shape_, packed_, tokens_, memory_sizes_, cache_, scratch_);
    for (int64_t part = 0; part < parts_; ++part) {
      if (!pick_part(pass_[part])) return false;
    }
    tokens_.count = parts_ = 0;
    return true;
  }

  // Picks place by place until a pick differs from the draft: what was computed behind it rests on the wrong prefix.
  bool pick_part(const PassPart& part) {
    RowProgress& own = progress_[part.row];
    tile_.work[2 * part.row] += 1;
    tile_.work[2 * part.row + 1] += part.length;
    bool is_as_drafted = true;
    int64_t picked = 0;
    while (picked < part.length && is_as_drafted) {
      if (!pick_place(part.row, part.token + picked)) return false;
      ++picked;
      if (own.upcoming != nullptr) is_as_drafted = strike(own, own.last);
    }
    if (own.upcoming != nullptr) {
      own.block = is_as_drafted ? 2 * part.length : picked;
      if (own.block > most_tokens) own.block = most_tokens;
    }
    return true;
  }

  // Takes the pick off the upcoming slots; true if it was the first of them.
  static bool strike(RowProgress& own, int64_t pick) {
    if (own.upcoming[0] == pick) {
      ++own.upcoming;
      return true;
    }
    int64_t i = 0;
    while (own.upcoming[i] != pick) ++i;
    for (; i > 0; --i) own.upcoming[i] = own.upcoming[i - 1];
    ++own.upcoming;
    return false;
  }

  bool pick_place(int64_t row, int64_t token) {
    RowProgress& own = progress_[row];
    const int64_t at = row * n_ + own.place;
    score_slots(scratch_.normed + token * padded<T>(width_), head_keys_of(row), width_, padded<T>(n_), own.count,
                scratch_.scores);
    const T* bias = tile_.head_bias + (tile_.is_head_shared ? 0 : row * n_);
    for (int64_t i = 0; i < own.count; ++i) {
      scratch_.scores[i] = (scratch_.scores[i] + bias[own.slots[i]]) / tile_.temperature;
    }
    const bool is_forced = own.place < tile_.forced_places;
    const int64_t forced = is_forced ? number_of(own, tile_.forced[at]) : 0;
    const PickFailure failure = row_kernels<T>().pick(
        scratch_.scores, own.remaining, tile_.uniform == nullptr ? nullptr : tile_.uniform + at,
        is_forced ? &forced : nullptr, own.count, &own.last, tile_.log_probs + at, scratch_.pick_weights);
    if (failure != PickFailure::none) return false;
    own.remaining[own.last] = false;
    tile_.order[at] = own.slots[own.last];
    ++own.place;
    return true;
  }

  // The last real slot has no rival: it is taken without a pass, and its log-probability is 0.
  void take_last(int64_t row) {
    const RowProgress& own = progress_[row];
    for (int64_t i = 0; i < own.count; ++i) {
      if (own.remaining[i]) tile_.order[row * n_ + own.count - 1] = own.slots[i];
    }
  }

  const TransformerShape& shape_;
  const T* packed_;
  const DecodeTile<T>& tile_;
  T* cache_;
  const int64_t n_, width_;
  Scratch<T> scratch_;
  RowProgress progress_[most_tile_rows];
  int64_t memory_sizes_[most_tile_rows];
  TokenList tokens_{};
  PassPart pass_[most_tokens];
  int64_t parts_ = 0;
};

template <typename T>
PickFailure decode_tile(const TransformerShape& shape, const T* packed, const DecodeTile<T>& tile, T* cache,
                        T* scratch_numbers) {
  return TileDecoder<T>(shape, packed, tile, cache, scratch_numbers).run();
}

// weight (outputs, inputs) and bias (outputs) as panels, then the padded bias.
template <typename T>
void pack_matrix(const T* weight, const T* bias, int64_t outputs, int64_t inputs, T* to) {
  const int64_t columns = padded<T>(outputs);
  for (int64_t first = 0; first < columns; first += panel_width<T>) {
    for (int64_t k = 0; k < inputs; ++k) {
      for (int64_t c = first; c < first + panel_width<T>; ++c) *to++ = c < outputs ? weight[c * inputs + k] : T(0);
    }
  }
  for (int64_t c = 0; c < columns; ++c) *to++ = c < outputs ? bias[c] : T(0);
}

template <typename T>
void pack_norm(const T* weight, const T* bias, int64_t width, T* to) {
  std::memcpy(to, weight, width * sizeof(T));
  std::memcpy(to + width, bias, width * sizeof(T));
}

template <typename T>
void pack_encoder(const TransformerShape& shape, const T* const* weights, T* packed) {
  const EncoderLayout<T> part(shape);
  const int64_t width = shape.model_width, feed = shape.feed_width;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const T* const* own = weights + layer * tensors_per_encoder_layer;
    T* to = packed + layer * part.size;
    pack_norm(own[0], own[1], width, to + part.self_norm);
    pack_matrix(own[2], own[3], 3 * width, width, to + part.self_qkv);
    pack_matrix(own[4], own[5], width, width, to + part.self_out);
    pack_norm(own[6], own[7], width, to + part.feed_norm);
    pack_matrix(own[8], own[9], feed, width, to + part.feed_in);
    pack_matrix(own[10], own[11], width, feed, to + part.feed_out);
  }
  const T* const* final_norm = weights + shape.layers * tensors_per_encoder_layer;
  pack_norm(final_norm[0], final_norm[1], width, packed + shape.layers * part.size);
}

template <typename T>
void pack_decoder(const TransformerShape& shape, const T* const* weights, T* packed) {
  const DecoderLayout<T> part(shape);
  const int64_t width = shape.model_width, feed = shape.feed_width;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const T* const* own = weights + layer * tensors_per_decoder_layer;
    T* to = packed + layer * part.size;
    pack_norm(own[0], own[1], width, to + part.self_norm);
    pack_matrix(own[2], own[3], 3 * width, width, to + part.self_qkv);
    pack_matrix(own[4], own[5], width, width, to + part.self_out);
    pack_norm(own[6], own[7], width, to + part.memory_norm);
    pack_matrix(own[8], own[9], width, width, to + part.memory_query);
    pack_matrix(own[10], own[11], 2 * width, width, to + part.memory_key_value);
    pack_matrix(own[12], own[13], width, width, to + part.memory_out);
    pack_norm(own[14], own[15], width, to + part.feed_norm);
    pack_matrix(own[16], own[17], feed, width, to + part.feed_in);
    pack_matrix(own[18], own[19], width, feed, to + part.feed_out);
  }
  const T* const* final_norm = weights + shape.layers * tensors_per_decoder_layer;
  pack_norm(final_norm[0], final_norm[1], width, packed + shape.layers * part.size);
}

template <typename T>
void fill(TransformerKernels<T>& table) {
  table.pack_decoder = pack_decoder<T>;
  table.pack_encoder = pack_encoder<T>;
  table.encode_rows = encode_rows<T>;
  table.encoder_scratch_numbers = encoder_scratch_numbers<T>;
  table.scratch_numbers = scratch_numbers<T>;
  table.decode_tile = decode_tile<T>;
  table.open_tile = open_tile<T>;
  table.advance_tile = advance_tile<T>;
}

}  // namespace

namespace SOFTRANK_ISA {

void add_transformer_kernels(CpuKernels& kernels) {
  fill(kernels.float_transformer);
  fill(kernels.double_transformer);
}

}  // namespace SOFTRANK_ISA
}  // namespace softrank

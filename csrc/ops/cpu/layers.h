// What encoder and decoder are made of: products with packed weights, layer norm, attention of one query, packing.
//
// Every output number is one chain of multiply-adds over its inputs in a fixed order, whatever the number of rows that
// are worked on together: a row's result has the same bits in any batch. Internal linkage: compiled once per
// instruction set.
#pragma once

#include <cmath>
#include <cstring>

#include "transformer.h"
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

// body(first, end, part) on parts of `count` tokens; in parallel if there are tokens enough to be worth it.
template <typename Body>
inline void for_token_parts(const Workers& workers, int64_t count, Body body) {
  constexpr int64_t fewest = 4;
  struct Context {
    Body& body;
    int64_t count, parts;
  } context{body, count, count / fewest < workers.parts ? count / fewest : workers.parts};
  if (context.parts < 2) {
    body(int64_t(0), count, int64_t(0));
    return;
  }
  workers.run(
      context.parts,
      [](void* pointer, int64_t part) {
        const Context& own = *static_cast<Context*>(pointer);
        own.body(own.count * part / own.parts, own.count * (part + 1) / own.parts, part);
      },
      &context);
}

inline int64_t count_real(const bool* mask, int64_t n) {
  int64_t count = 0;
  for (int64_t slot = 0; slot < n; ++slot) count += mask[slot];
  return count;
}

// weight (outputs, inputs) and bias (outputs; null for 0) as panels, then the padded bias. A panel is filled a square
// at a time: it is written across its rows, and a square stays in the first-level cache.
template <typename T>
void pack_matrix(const T* weight, const T* bias, int64_t outputs, int64_t inputs, T* to) {
  const int64_t columns = padded<T>(outputs);
  for (int64_t first = 0; first < columns; first += panel_width<T>, to += inputs * panel_width<T>) {
    for (int64_t square = 0; square < inputs; square += panel_width<T>) {
      const int64_t end = square + panel_width<T> < inputs ? square + panel_width<T> : inputs;
      for (int64_t c = 0; c < panel_width<T>; ++c) {
        const T* from = weight + (first + c) * inputs;
        for (int64_t k = square; k < end; ++k) to[k * panel_width<T> + c] = first + c < outputs ? from[k] : T(0);
      }
    }
  }
  for (int64_t c = 0; c < columns; ++c) *to++ = bias != nullptr && c < outputs ? bias[c] : T(0);
}

template <typename T>
void pack_projection(const T* weight, int64_t outputs, int64_t inputs, T* packed) {
  pack_matrix<T>(weight, nullptr, outputs, inputs, packed);
}

// `product` has room for most_tokens rows of padded outputs.
template <typename T>
void project(const T* packed, int64_t rows, const T* x, int64_t outputs, int64_t inputs, T* out, T* product) {
  const int64_t stride = padded<T>(outputs);
  for (int64_t first = 0; first < rows; first += most_tokens) {
    const int64_t count = rows - first < most_tokens ? rows - first : most_tokens;
    multiply<T, Store::plain>(x + first * inputs, count, inputs, packed, outputs, inputs, product, stride);
    for (int64_t r = 0; r < count; ++r) {
      std::memcpy(out + (first + r) * outputs, product + r * stride, outputs * sizeof(T));
    }
  }
}

template <typename T>
void pack_norm(const T* weight, const T* bias, int64_t width, T* to) {
  std::memcpy(to, weight, width * sizeof(T));
  std::memcpy(to + width, bias, width * sizeof(T));
}

// Layers first to end - 1; the last one brings the final norm with it.
template <typename T>
void pack_layers(const TransformerShape& shape, const T* const* weights, int64_t first, int64_t end, T* packed) {
  const LayerLayout<T> layout(shape);
  const int64_t per_layer = tensors_per_layer(shape.kind);
  for (int64_t layer = first; layer < end; ++layer) {
    const T* const* own = weights + layer * per_layer;
    for (int part = 0; part < all_parts; ++part) {
      if (!has_part(shape.kind, part)) continue;
      T* to = packed + layer * layout.size + layout.at[part];
      const int64_t outputs = size_of(shape, part_infos[part].outputs),
                    inputs = size_of(shape, part_infos[part].inputs);
      if (part_infos[part].inputs == Size::none) {
        pack_norm(own[0], own[1], outputs, to);
      } else {
        pack_matrix(own[0], own[1], outputs, inputs, to);
      }
      own += 2;
    }
  }
  if (end < shape.layers) return;
  const T* const* final_norm = weights + shape.layers * per_layer;
  pack_norm(final_norm[0], final_norm[1], shape.model_width, packed + shape.layers * layout.size);
}

// The sublayers of one layer, on tokens x (count, D) of stride padded D. A sublayer reads x through its norm and adds
// to x, or reads x, adds, and is followed by its norm.
template <typename T>
class Sublayers {
 public:
  Sublayers(const TransformerShape& shape, const LayerLayout<T>& layout, const T* layer)
      : shape_(shape), layout_(layout), layer_(layer), width_(shape.model_width), stride_(padded<T>(width_)) {}

  // out = the matrix's product with x, or with its norm, which is written to `normed`.
  void begin(Part norm, Part matrix, const T* x, int64_t count, T* normed, T* out, int64_t out_stride) const {
    multiply<T, Store::plain>(read(norm, x, count, normed), count, stride_, layer_ + layout_.at[matrix],
                              size_of(shape_, part_infos[matrix].outputs), width_, out, out_stride);
  }

  // x += the matrix's product with `attended`; the end of a sublayer that `begin` began.
  void finish(Part norm, Part matrix, const T* attended, int64_t count, T* x) const {
    multiply<T, Store::add>(attended, count, stride_, layer_ + layout_.at[matrix], width_, width_, x, stride_);
    end(norm, count, x);
  }

  void feed_forward(int64_t count, T* x, T* normed, T* hidden) const {
    const int64_t feed = shape_.feed_width, feed_stride = padded<T>(feed);
    multiply<T, Store::relu>(read(feed_norm, x, count, normed), count, stride_, layer_ + layout_.at[feed_in], feed,
                             width_, hidden, feed_stride);
    multiply<T, Store::add>(hidden, count, feed_stride, layer_ + layout_.at[feed_out], width_, feed, x, stride_);
    end(feed_norm, count, x);
  }

 private:
  const T* read(Part norm, const T* x, int64_t count, T* normed) const {
    if (!shape_.norm_first) return x;
    layer_norm(x, count, stride_, width_, layer_ + layout_.at[norm], normed, stride_);
    return normed;
  }

  void end(Part norm, int64_t count, T* x) const {
    if (!shape_.norm_first) layer_norm(x, count, stride_, width_, layer_ + layout_.at[norm], x, stride_);
  }

  const TransformerShape& shape_;
  const LayerLayout<T>& layout_;
  const T* layer_;
  int64_t width_, stride_;
};

}  // namespace
}  // namespace softrank

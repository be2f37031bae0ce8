// The encoder: whole rows of tokens through all layers.
#pragma once

#include "layers.h"

namespace softrank {
namespace {

// Rows that are encoded together: enough tokens for the matrix products, at least one row.
inline int64_t rows_together(const TransformerShape& shape) {
  return shape.slots < most_tokens ? most_tokens / (shape.slots > 0 ? shape.slots : 1) : 1;
}

// Scratch of the encoder: whole rows of tokens, their queries, the keys and values of two layers, and for each part
// that works at once what a group of its tokens needs.
template <typename T>
struct EncoderScratch {
  T *x, *query, *keys, *normed, *projected, *hidden, *weights;

  static int64_t layout(const TransformerShape& shape, int64_t parts, T* base, EncoderScratch* scratch) {
    const int64_t width = padded<T>(shape.model_width), rows = rows_together(shape), tokens = rows * shape.slots;
    const CacheLayout<T> cache(shape);
    int64_t at = 0;
    const auto take = [&](int64_t numbers, T* EncoderScratch::* part) {
      if (scratch != nullptr) scratch->*part = base + at;
      at += padded<T>(numbers);
    };
    take(tokens * width, &EncoderScratch::x);
    take(tokens * width, &EncoderScratch::query);
    take(2 * rows * (cache.keys + cache.values), &EncoderScratch::keys);
    take(parts * most_tokens * width, &EncoderScratch::normed);
    take(parts * most_tokens * padded<T>(3 * shape.model_width), &EncoderScratch::projected);
    take(parts * most_tokens * padded<T>(shape.feed_width), &EncoderScratch::hidden);
    take(parts * padded<T>(shape.slots), &EncoderScratch::weights);
    return at;
  }
};

template <typename T>
int64_t encoder_scratch_numbers(const TransformerShape& shape, int64_t parts) {
  return EncoderScratch<T>::layout(shape, parts, nullptr, nullptr);
}

// All layers on the tokens of `rows` rows, sizes[row] of them each, one row after another in scratch.x.
template <typename T>
void encode_layers(const TransformerShape& shape, const T* packed, int64_t rows, const int64_t* sizes,
                   const EncoderScratch<T>& scratch, const Workers& workers) {
  const LayerLayout<T> parts(shape);
  const CacheLayout<T> layout(shape);
  const int64_t width = shape.model_width, stride = padded<T>(width), qkv_stride = padded<T>(3 * width);
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) count += sizes[row];
  const auto for_chunks = [&](int64_t first, int64_t end, auto body) {
    for (; first < end; first += most_tokens) body(first, end - first < most_tokens ? end - first : most_tokens);
  };
  // body(token, row, place in the row) for tokens first to end - 1.
  const auto for_tokens = [&](int64_t first, int64_t end, auto body) {
    int64_t row = 0, in_row = first;
    for (; row < rows && in_row >= sizes[row]; ++row) in_row -= sizes[row];
    for (int64_t token = first; token < end; ++token, ++in_row) {
      while (in_row == sizes[row]) ++row, in_row = 0;
      body(token, row, in_row);
    }
  };
  // A layer's keys and values of a row. Two layers take turns, as some parts of the tokens may be one layer ahead.
  const auto keys_of = [&](int64_t layer, int64_t row) {
    return scratch.keys + ((layer % 2) * rows + row) * (layout.keys + layout.values);
  };
  // 1. Queries, keys and values of tokens.
  const auto project = [&](int64_t layer, int64_t begin, int64_t end, int64_t part_number) {
    const Sublayers<T> sublayers(shape, parts, packed + layer * parts.size);
    T* normed = scratch.normed + part_number * most_tokens * stride;
    T* projected = scratch.projected + part_number * most_tokens * qkv_stride;
    for_chunks(begin, end, [&](int64_t first, int64_t chunk) {
      sublayers.begin(self_norm, self_qkv, scratch.x + first * stride, chunk, normed, projected, qkv_stride);
      for_tokens(first, first + chunk, [&](int64_t token, int64_t row, int64_t in_row) {
        const T* qkv = projected + (token - first) * qkv_stride;
        T* keys = keys_of(layer, row);
        std::memcpy(scratch.query + token * stride, qkv, width * sizeof(T));
        write_key_value(shape, qkv + width, qkv + 2 * width, in_row, keys, keys + layout.keys);
      });
    });
  };
  // 2. When those of all tokens are there: attention within each row, in the queries' place; output projection and
  // feed-forward.
  const auto finish = [&](int64_t layer, int64_t begin, int64_t end, int64_t part_number) {
    const Sublayers<T> sublayers(shape, parts, packed + layer * parts.size);
    T* attention_weights = scratch.weights + part_number * padded<T>(shape.slots);
    T* normed = scratch.normed + part_number * most_tokens * stride;
    T* hidden = scratch.hidden + part_number * most_tokens * padded<T>(shape.feed_width);
    for_tokens(begin, end, [&](int64_t token, int64_t row, int64_t) {
      T* query = scratch.query + token * stride;
      const T* keys = keys_of(layer, row);
      attend_heads(shape, query, keys, keys + layout.keys, sizes[row], attention_weights, query);
    });
    for_chunks(begin, end, [&](int64_t first, int64_t chunk) {
      T* x = scratch.x + first * stride;
      sublayers.finish(self_norm, self_out, scratch.query + first * stride, chunk, x);
      sublayers.feed_forward(chunk, x, normed, hidden);
    });
  };
  // Parts of the tokens wait for each other once per layer.
  for (int64_t layer = 0; layer <= shape.layers; ++layer) {
    for_token_parts(workers, count, [&](int64_t first, int64_t end, int64_t part_number) {
      if (layer > 0) finish(layer - 1, first, end, part_number);
      if (layer < shape.layers) {
        project(layer, first, end, part_number);
      } else {
        T* x = scratch.x + first * stride;
        layer_norm(x, end - first, stride, width, packed + shape.layers * parts.size, x, stride);
      }
    });
  }
}

template <typename T>
void encode_rows(const TransformerShape& shape, const T* packed, int64_t rows, const T* x, const bool* mask, T* memory,
                 T* scratch_numbers, const Workers& workers) {
  EncoderScratch<T> scratch;
  EncoderScratch<T>::layout(shape, workers.parts, scratch_numbers, &scratch);
  const int64_t n = shape.slots, width = shape.model_width, stride = padded<T>(width);
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
    encode_layers(shape, packed, together, sizes, scratch, workers);
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

}  // namespace
}  // namespace softrank

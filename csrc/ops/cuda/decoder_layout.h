// The decoder on CUDA: its sizes, where its packed weights stand, and what a launch of its kernels needs.
//
// Packed weights: layer after layer the norms and matrices in the order of `LayerParts`, then the final norm, then one
// matrix that gives the memory's keys and values of all layers. How a matrix is laid out depends on the products that
// read it (products.cuh); norms are weight and bias one after the other. Every part begins at a multiple of 4 numbers,
// so that 4 of them are one load.
#pragma once

#include <cstdint>

#include "../../kernels/host_device.h"

namespace softrank {

constexpr int decoder_threads = 256;
constexpr int decoder_warps = decoder_threads / 32;
constexpr int most_block_tokens = 16;

struct DecoderSizes {
  int layers, width, feed_width, heads, slots;
  bool norm_first;
};

SOFTRANK_ROW int64_t rounded_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// Numbers of a matrix (outputs, inputs) and its bias, both padded with zeros.
template <typename Products>
SOFTRANK_ROW int64_t matrix_numbers(int64_t outputs, int64_t inputs) {
  return rounded_up(outputs, Products::output_step) * (rounded_up(inputs, Products::input_step) + 1);
}

// Where the parts of a layer begin, and the size of a layer.
struct LayerParts {
  int64_t self_norm, self_qkv, self_out, memory_norm, memory_query, memory_out, feed_norm, feed_in, feed_out, size;
};

template <typename Products>
SOFTRANK_ROW LayerParts layer_parts(int64_t width, int64_t feed_width) {
  const int64_t norm = rounded_up(2 * width, 4), square = matrix_numbers<Products>(width, width);
  LayerParts parts{};
  parts.self_qkv = parts.self_norm + norm;
  parts.self_out = parts.self_qkv + matrix_numbers<Products>(3 * width, width);
  parts.memory_norm = parts.self_out + square;
  parts.memory_query = parts.memory_norm + norm;
  parts.memory_out = parts.memory_query + square;
  parts.feed_norm = parts.memory_out + square;
  parts.feed_in = parts.feed_norm + norm;
  parts.feed_out = parts.feed_in + matrix_numbers<Products>(feed_width, width);
  parts.size = parts.feed_out + matrix_numbers<Products>(width, feed_width);
  return parts;
}

template <typename Products>
SOFTRANK_ROW int64_t final_norm_at(const DecoderSizes& sizes) {
  return sizes.layers * layer_parts<Products>(sizes.width, sizes.feed_width).size;
}

template <typename Products>
SOFTRANK_ROW int64_t memory_matrix_at(const DecoderSizes& sizes) {
  return final_norm_at<Products>(sizes) + rounded_up(2 * sizes.width, 4);
}

// Numbers of the packed weights. What comes on top tells the layouts of different products apart by their size.
template <typename Products>
SOFTRANK_ROW int64_t packed_numbers(const DecoderSizes& sizes) {
  return memory_matrix_at<Products>(sizes) + matrix_numbers<Products>(2 * sizes.layers * sizes.width, sizes.width) +
         Products::mark;
}

// Numbers between two tokens' activations of this width in shared memory.
template <typename Products>
SOFTRANK_ROW int row_stride(int width) {
  return int(rounded_up(width, Products::input_step)) + Products::row_padding;
}

// The parts of a block's shared memory, in numbers, and the integers behind them.
struct SharedParts {
  int x, normed, attended, projected, weights, partial, size;
  int stride, wide_stride;  // between tokens: of x, normed and attended, and of projected
};

// attention_warps: so many warps attend at once, each with room for a weight per slot.
template <typename Products, int tokens>
SOFTRANK_ROW SharedParts shared_parts(const DecoderSizes& sizes, int attention_warps) {
  SharedParts parts{};
  parts.stride = row_stride<Products>(sizes.width);
  parts.wide_stride = row_stride<Products>(sizes.feed_width > 3 * sizes.width ? sizes.feed_width : 3 * sizes.width);
  parts.normed = parts.x + tokens * parts.stride;
  parts.attended = parts.normed + tokens * parts.stride;
  parts.projected = parts.attended + tokens * parts.stride;
  parts.weights = parts.projected + tokens * parts.wide_stride;
  parts.partial = parts.weights + attention_warps * sizes.slots;
  parts.size = parts.partial + Products::partial_numbers(tokens);
  return parts;
}

// Behind the numbers stand integers: of each token the upcoming pick, of each row last pick, length, place and count.
template <typename Products, int tokens>
int64_t shared_bytes(const DecoderSizes& sizes, int attention_warps) {
  return int64_t(shared_parts<Products, tokens>(sizes, attention_warps).size) *
             int64_t(sizeof(typename Products::Number)) +
         5 * tokens * int64_t(sizeof(int));
}

// What the decoder kernel reads and writes, in device memory. Pointers that may be null say so.
template <typename T>
struct DecodeArguments {
  DecoderSizes sizes;
  int64_t rows;
  const T* packed;         // multiples of 16 bytes, as are memory_keys, caches and head_keys
  const T* memory_keys;    // (B, N, layers, 2, D): keys and values of the memory
  T* caches;               // (B, layers, 2, N, D): room for keys and values of the places
  const T* tokens;         // (B, N, D)
  const T* start;          // (B, D)
  const T* places;         // (N, D)
  const T* head_keys;      // (B or 1, N, D)
  const T* head_bias;      // (B or 1, N)
  bool is_head_shared;     // one head for all rows
  const bool* mask;        // (B, N)
  const T* uniform;        // (B, N), or null: greedy
  const int64_t* forced;   // (B, N), or null
  int forced_places;       // leading places that are forced
  T temperature;           // scores are divided by it
  const int64_t* draft;    // (B, N), or null
  int places_per_pass;     // tokens of each row in a block; all but the first are idle without a draft
  const bool* candidates;  // (B, N) by number among the real slots: what the rules allow next; or null
  bool is_begun;           // goes on from `progress`
  int most_passes;         // ends after so many
  int attention_warps;     // see SharedParts
  T* scores;               // (blocks * tokens, N) scratch
  int* real_slots;         // (B, N) scratch: real slots by number
  int* drafted;            // (B, N) scratch: the draft as numbers; null without a draft
  bool* remaining;         // (B, N) scratch, by number
  int* progress;           // (B, 3): real slots, the next place, the last pick (by number)
  int64_t* order;          // (B, N)
  T* log_probs;            // (B, N); NaN where a pick failed
  int64_t* work;           // (B, 2)
};

}  // namespace softrank

// What the host decides before it launches the decoder: how rows are laid on blocks, which weight goes where in the
// packed tensor, and which slots rules allow at each place. No CUDA and no torch here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../kernels/constraints.h"
#include "decoder_layout.h"

namespace softrank {

// Calls body.operator()<tokens>() for a number of tokens that is a power of two from `least` to most_block_tokens.
template <int least = 1, typename Body>
auto with_tokens(int tokens, Body body) {
  if constexpr (least < most_block_tokens) {
    if (tokens > least) return with_tokens<2 * least>(tokens, body);
  }
  return body.template operator()<least>();
}

// What a plan depends on: multiprocessors, shared memory of a block, compute capability 8.0 or later.
struct Gpu {
  int processors;
  int64_t shared_bytes;
  bool has_tensor_cores;
};

// Whether the decoder is to use tensor cores: where they are, if blocks of 8 tokens fit. Depends on nothing that
// changes between calls with the same packed weights.
template <typename TensorProducts>
bool uses_tensor_cores(DecoderSizes sizes, const Gpu& gpu) {
  sizes.slots = 1024;
  return gpu.has_tensor_cores && shared_bytes<TensorProducts, 8>(sizes, 1) <= gpu.shared_bytes;
}

struct DecodePlan {
  int tokens, places_per_pass, attention_warps;

  int64_t blocks(int64_t rows) const { return (rows + tokens / places_per_pass - 1) / (tokens / places_per_pass); }
};

// Rows of a block share the weights that it reads. A GPU runs blocks in rounds, one on each of its processors; reading
// the weights takes a round about as long as multiplying them by 8 tokens. The fewest rows of a block that make the
// rounds together shortest are taken. With a draft, what is free of 8 tokens goes to further places of a row. Where
// shared memory is short, fewer warps attend at once, then blocks take less. tokens is 0 if nothing fits.
template <typename Products>
DecodePlan plan_decode(const DecoderSizes& sizes, int64_t rows, bool has_draft, const Gpu& gpu) {
  int block_rows = 1;
  int64_t shortest = INT64_MAX;
  for (int tried = 1; tried <= most_block_tokens; tried *= 2) {
    const int tokens = std::max(tried, Products::least_tokens);
    const int64_t blocks = (rows + tried - 1) / tried, rounds = (blocks + gpu.processors - 1) / gpu.processors;
    if (!Products::is_launched(tokens, gpu.has_tensor_cores) || rounds * (8 + tokens) >= shortest) continue;
    shortest = rounds * (8 + tokens);
    block_rows = tried;
  }
  for (int tokens = std::max({block_rows, Products::least_tokens, has_draft ? 8 : 1}); tokens >= Products::least_tokens;
       tokens /= 2) {
    if (!Products::is_launched(tokens, gpu.has_tensor_cores)) continue;
    for (int warps = decoder_warps; warps > 0; warps /= 2) {
      const bool is_last_chance = tokens == Products::least_tokens || warps >= decoder_warps / 2;
      const int64_t bytes = with_tokens<Products::least_tokens>(
          tokens, [&]<int count>() { return shared_bytes<Products, count>(sizes, warps); });
      if (is_last_chance && bytes <= gpu.shared_bytes) return {tokens, tokens / std::min(block_rows, tokens), warps};
    }
  }
  return {0, 1, 1};
}

// The parts of the decoder's packed weights by their number in the list of weights (weight, then bias): norm(number,
// at) and matrix(number, outputs, inputs, first output, all outputs, at). The list has the order of ops.LAYER_PARTS.
template <typename Products, typename Norm, typename Matrix>
void for_each_part(const DecoderSizes& sizes, Norm norm, Matrix matrix) {
  const int width = sizes.width, feed_width = sizes.feed_width, memory_outputs = 2 * sizes.layers * width;
  const LayerParts parts = layer_parts<Products>(width, feed_width);
  for (int layer = 0; layer < sizes.layers; ++layer) {
    const int64_t at = layer * parts.size;
    const int first = 20 * layer;
    norm(first, at + parts.self_norm);
    matrix(first + 2, 3 * width, width, 0, 3 * width, at + parts.self_qkv);
    matrix(first + 4, width, width, 0, width, at + parts.self_out);
    norm(first + 6, at + parts.memory_norm);
    matrix(first + 8, width, width, 0, width, at + parts.memory_query);
    matrix(first + 10, 2 * width, width, 2 * layer * width, memory_outputs, memory_matrix_at<Products>(sizes));
    matrix(first + 12, width, width, 0, width, at + parts.memory_out);
    norm(first + 14, at + parts.feed_norm);
    matrix(first + 16, feed_width, width, 0, feed_width, at + parts.feed_in);
    matrix(first + 18, width, feed_width, 0, width, at + parts.feed_out);
  }
  norm(20 * sizes.layers, final_norm_at<Products>(sizes));
}

// Decodes place by place under rules. For every place the host says which slots may come next, in `candidates` (B, N)
// by number among the real slots; run_place(place) copies them to the device and runs one pass from there;
// read_picks(numbers) waits for its picks (B,), by number, and is called once for every place but the last.
// rules_of(row) and mask (B, N) are on the host. Throws std::runtime_error if the rules leave nothing or are too hard,
// or if it is to stop.
template <typename RulesOf, typename RunPlace, typename ReadPicks>
void decode_under_rules(int64_t rows, int64_t n, const bool* mask, RulesOf rules_of, bool* candidates,
                        RunPlace run_place, ReadPicks read_picks, Stop& stop) {
  std::vector<RowConstraints> constraints(rows);
  std::vector<int64_t> counts(rows);
  std::vector<int> picks(rows);
  for (int64_t row = 0; row < rows; ++row) {
    constraints[row].begin(rules_of(row), mask + row * n, n, stop);
    counts[row] = std::count(mask + row * n, mask + (row + 1) * n, true);
  }
  const int64_t longest = rows == 0 ? 0 : *std::max_element(counts.begin(), counts.end());
  for (int64_t place = 0; place == 0 || place + 1 < longest; ++place) {  // once in any case: rows must be begun
    for (int64_t row = 0; row < rows; ++row) {
      if (place + 1 >= counts[row]) continue;
      const bool* next = constraints[row].next();
      if (next == nullptr) throw std::runtime_error(stop() ? Stop::sentence : RowConstraints::too_hard);
      if (std::find(next, next + counts[row], true) == next + counts[row]) {
        throw std::runtime_error("constraints must leave an order, they leave none");
      }
      std::copy_n(next, counts[row], candidates + row * n);
    }
    run_place(place);
    if (place + 2 >= longest) break;
    read_picks(picks.data());
    for (int64_t row = 0; row < rows; ++row) {
      if (place + 1 < counts[row]) constraints[row].place(picks[row]);
    }
  }
}

}  // namespace softrank

// The cached decoder as CUDA kernels: a whole order in one launch. No torch here: the tests compile this file for the
// host too, so it uses threads, shared memory, barriers and warp operations only.
//
// A block takes some rows through all their places. What goes through the layers together is `tokens` tokens: with P
// places per pass, P tokens of each of tokens / P rows. The first token of a row is its next place; the others, used
// with a draft, are the places after it as if the draft were right, and their picks count up to the first that differs
// from the draft. A token's numbers do not depend on what stands beside it: rows per block, places per pass and batch
// change no bit.
// Real slots are compacted: their numbers, in index order, are what attention, picks and rules speak of.
#pragma once

#include "decoder_parts.cuh"
#include "tensor_products.cuh"

namespace softrank {

#if defined(__CUDACC__)
template <typename T>
__device__ T* shared_memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return reinterpret_cast<T*>(bytes);
}
#endif

// Writes a matrix (outputs, inputs) with its bias into a packed matrix of all_outputs outputs, from first_output on.
// One thread per weight and bias: launch blocks for outputs * (inputs + 1) threads. What is padding must be 0 already.
template <typename Products, typename T>
__global__ void pack_matrix_kernel(const T* weight, const T* bias, int outputs, int inputs, int first_output,
                                   int all_outputs, T* packed) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= int64_t(outputs) * (inputs + 1)) return;
  const int output = int(i / (inputs + 1)), input = int(i % (inputs + 1));
  const int64_t padded_outputs = rounded_up(all_outputs, Products::output_step);
  const int64_t padded_inputs = rounded_up(inputs, Products::input_step);
  if (input == inputs) {
    packed[padded_outputs * padded_inputs + first_output + output] = bias[output];
  } else {
    packed[Products::weight_at(first_output + output, input, padded_outputs, padded_inputs)] =
        weight[int64_t(output) * inputs + input];
  }
}

// Writes weight and bias of a norm one behind the other: launch a thread per number.
template <typename T>
__global__ void pack_norm_kernel(const T* weight, const T* bias, int width, T* packed) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < 2 * width) packed[i] = i < width ? weight[i] : bias[i - width];
}

// Keys and values of the memory for all layers: memory (slots, D) to memory_keys (slots, layers, 2, D). A block takes
// `tokens` slots; its shared memory holds them and the partial sums.
template <typename Products, int tokens, typename T>
__global__ void __launch_bounds__(decoder_threads, 1)
    memory_keys_kernel(DecoderSizes sizes, const T* packed, const T* memory, int64_t slots, T* memory_keys) {
  T* x = shared_memory<T>();
  const int stride = row_stride<Products>(sizes.width), outputs = 2 * sizes.layers * sizes.width;
  const int64_t first = int64_t(blockIdx.x) * tokens;
  for (int i = threadIdx.x; i < tokens * stride; i += decoder_threads) {
    const int64_t slot = first + i / stride;
    const int c = i % stride;
    x[i] = slot < slots && c < sizes.width ? memory[slot * sizes.width + c] : T(0);
  }
  __syncthreads();  // the slots are there
  Products::template multiply<tokens>(x, stride, packed + memory_matrix_at<Products>(sizes), outputs, sizes.width,
                                      x + tokens * stride, [&](int token, int output, T value) {
                                        if (first + token < slots)
                                          memory_keys[(first + token) * outputs + output] = value;
                                      });
}

template <typename Products, int tokens>
int64_t memory_keys_shared_bytes(const DecoderSizes& sizes) {
  return int64_t(sizeof(typename Products::Number)) *
         (tokens * row_stride<Products>(sizes.width) + Products::partial_numbers(tokens));
}

// A block's work on its rows. Rows past the end of the batch have no slots; tokens beyond a row's length are zeros.
template <typename Products, int tokens>
class BlockDecoder {
  using T = typename Products::Number;

 public:
  __device__ explicit BlockDecoder(const DecodeArguments<T>& arguments)
      : p(arguments),
        parts(layer_parts<Products>(p.sizes.width, p.sizes.feed_width)),
        shared(shared_parts<Products, tokens>(p.sizes, p.attention_warps)),
        width(p.sizes.width),
        n(p.sizes.slots),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        block_rows(tokens / p.places_per_pass),
        first_row(int64_t(blockIdx.x) * block_rows) {
    T* numbers = shared_memory<T>();
    x = numbers + shared.x;
    normed = numbers + shared.normed;
    attended = numbers + shared.attended;
    projected = numbers + shared.projected;
    weights = numbers + shared.weights + (warp < p.attention_warps ? warp : 0) * n;
    partial = numbers + shared.partial;
    upcoming = reinterpret_cast<int*>(numbers + shared.size);
    last = upcoming + tokens;
    length = last + tokens;
    place = length + tokens;
    count = place + tokens;
  }

  __device__ void run() {
    for (int i = threadIdx.x; i < shared.weights; i += decoder_threads) x[i] = T(0);  // x to projected
    for (int r = warp; r < block_rows; r += decoder_warps) begin_row(r);
    __syncthreads();  // the rows' states are there
    for (int pass = 0; pass < p.most_passes && has_choices(); ++pass) {
      for (int r = warp; r < block_rows; r += decoder_warps) plan_row(r);
      __syncthreads();  // the rows' lengths and upcoming picks are there
      embed_tokens();
      for (int layer = 0; layer < p.sizes.layers; ++layer) run_layer(layer);
      norm(x, final_norm_at<Products>(p.sizes), normed);
      score_tokens();
      for (int r = warp; r < block_rows; r += decoder_warps) pick_row(r);
      __syncthreads();  // the picks are there
    }
    for (int r = warp; r < block_rows; r += decoder_warps) end_row(r);
  }

 private:
  __device__ int64_t row_start(int r) const { return (first_row + r) * n; }
  __device__ int row_of(int token) const { return token / p.places_per_pass; }
  __device__ int place_of(int token) const { return place[row_of(token)] + token % p.places_per_pass; }
  __device__ bool is_live(int token) const { return token % p.places_per_pass < length[row_of(token)]; }

  __device__ bool has_choices() const {
    int most = 0;
    for (int r = 0; r < block_rows; ++r) most = count[r] - 1 - place[r] > most ? count[r] - 1 - place[r] : most;
    return most > 0;
  }

  // The number of a real slot, by bisection.
  __device__ int number_of(int r, int64_t slot) const {
    int low = 0, high = count[r] - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (p.real_slots[row_start(r) + middle] < slot) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Numbers the real slots, puts padding behind them into the order; or takes up the row where it was left.
  __device__ void begin_row(int r) {
    const int64_t row = first_row + r, at = row_start(r);
    const bool is_row = row < p.rows;
    if (p.is_begun) {
      if (lane == 0) {
        count[r] = is_row ? p.progress[3 * row] : 0;
        place[r] = is_row ? p.progress[3 * row + 1] : 0;
        last[r] = is_row ? p.progress[3 * row + 2] : -1;
      }
      return;
    }
    int real = 0, all_real = 0;
    for (int first = 0; first < n; first += 32) {
      const int slot = first + lane;
      all_real += __popc(__ballot_sync(whole_warp, is_row && slot < n && p.mask[at + slot]));
    }
    for (int first = 0; first < n; first += 32) {
      const int slot = first + lane;
      const bool is_slot = is_row && slot < n, is_real = is_slot && p.mask[at + slot];
      const unsigned reals = __ballot_sync(whole_warp, is_real);
      const int number = real + __popc(reals & ((1u << lane) - 1));
      if (is_real) p.real_slots[at + number] = slot;
      if (is_slot && !is_real) p.order[at + all_real + slot - number] = slot;
      if (is_slot) p.log_probs[at + slot] = T(0);
      if (is_slot) p.remaining[at + slot] = true;
      real += __popc(reals);
    }
    if (lane == 0) {
      count[r] = real;
      place[r] = 0;
      last[r] = -1;
      if (is_row) p.work[2 * row] = p.work[2 * row + 1] = 0;
    }
    __syncwarp();  // count and real slots are there
    if (p.draft == nullptr) return;
    for (int i = lane; i < real; i += 32) p.drafted[at + i] = number_of(r, p.draft[at + i]);
  }

  // How many places of the row go through the next pass, and the picks that the draft expects at them.
  __device__ void plan_row(int r) {
    const int left = count[r] - 1 - place[r], most = p.draft == nullptr ? 1 : p.places_per_pass;
    const int own_length = left <= 0 ? 0 : left < most ? left : most;
    if (lane == 0) length[r] = own_length;
    if (p.draft == nullptr) return;
    int found = 0;
    for (int first = 0; first < count[r] && found < own_length; first += 32) {
      const int number = first + lane < count[r] ? p.drafted[row_start(r) + first + lane] : -1;
      const bool is_left = number >= 0 && p.remaining[row_start(r) + number];
      const unsigned lefts = __ballot_sync(whole_warp, is_left);
      const int rank = found + __popc(lefts & ((1u << lane) - 1));
      if (is_left && rank < own_length) upcoming[r * p.places_per_pass + rank] = number;
      found += __popc(lefts);
    }
  }

  __device__ void embed_tokens() {
    for (int i = threadIdx.x; i < tokens * width; i += decoder_threads) {
      const int token = i / width, c = i % width, r = row_of(token);
      T value = 0;
      if (is_live(token)) {
        const int at = place_of(token), before = token % p.places_per_pass == 0 ? last[r] : upcoming[token - 1];
        const T* embedded = at == 0 ? p.start + (first_row + r) * width
                                    : p.tokens + (row_start(r) + p.real_slots[row_start(r) + before]) * width;
        value = embedded[c] + p.places[int64_t(at) * width + c];
      }
      x[token * shared.stride + c] = value;
      attended[token * shared.stride + c] = T(0);
    }
    __syncthreads();  // the tokens are there
  }

  __device__ void norm(const T* from, int64_t part, T* out) {
    for (int token = warp; token < tokens; token += decoder_warps) {
      norm_token(from + token * shared.stride, width, p.packed + part, out + token * shared.stride);
    }
    __syncthreads();  // all tokens are normed
  }

  // A product of x, normed first in pre-norm, into `projected`.
  __device__ void project(int64_t norm_part, int64_t matrix, int outputs, bool is_rectified) {
    if (p.sizes.norm_first) norm(x, norm_part, normed);
    Products::template multiply<tokens>(p.sizes.norm_first ? normed : x, shared.stride, p.packed + matrix, outputs,
                                        width, partial, [&](int token, int output, T value) {
                                          const bool is_cut = is_rectified && value < T(0);
                                          projected[token * shared.wide_stride + output] = is_cut ? T(0) : value;
                                        });
  }

  // x += a product of `from`; in post-norm the sum is normed.
  __device__ void add_product(const T* from, int stride, int64_t matrix, int inputs, int64_t norm_part) {
    Products::template multiply<tokens>(
        from, stride, p.packed + matrix, width, inputs, partial,
        [&](int token, int output, T value) { x[token * shared.stride + output] += value; });
    if (!p.sizes.norm_first) norm(x, norm_part, x);
  }

  // Attention to the places so far, to the memory, then the feed-forward. A loop that is not unrolled: each product in
  // the code takes registers and seconds to compile.
  __device__ void run_layer(int layer) {
    const int64_t at = layer * parts.size;
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      const bool is_own = part == 0, is_feed = part == 2;
      const int64_t norm_part = at + (is_own ? parts.self_norm : is_feed ? parts.feed_norm : parts.memory_norm);
      const int64_t in = at + (is_own ? parts.self_qkv : is_feed ? parts.feed_in : parts.memory_query);
      const int64_t out = at + (is_own ? parts.self_out : is_feed ? parts.feed_out : parts.memory_out);
      project(norm_part, in, is_own ? 3 * width : is_feed ? p.sizes.feed_width : width, is_feed);
      if (is_own) store_keys(layer);
      if (!is_feed) attend_all(layer, is_own);
      add_product(is_feed ? projected : attended, is_feed ? shared.wide_stride : shared.stride, out,
                  is_feed ? p.sizes.feed_width : width, norm_part);
    }
  }

  __device__ T* own_keys(int r, int layer) const {
    return p.caches + ((first_row + r) * p.sizes.layers + layer) * 2 * n * width;
  }

  // Keys and values of the places join the caches.
  __device__ void store_keys(int layer) {
    for (int i = threadIdx.x; i < tokens * 2 * width; i += decoder_threads) {
      const int token = i / (2 * width), c = i % (2 * width);
      if (!is_live(token)) continue;
      own_keys(row_of(token), layer)[(int64_t(c / width) * n + place_of(token)) * width + c % width] =
          projected[token * shared.wide_stride + width + c];
    }
    __syncthreads();  // keys and values are in the caches
  }

  // Every head of every token attends: to the places up to its own, or to the memory's real slots.
  __device__ void attend_all(int layer, bool is_own) {
    const int heads = p.sizes.heads, channels = width / heads;
    for (int i = warp; warp < p.attention_warps && i < tokens * heads; i += p.attention_warps) {
      const int token = i / heads, r = row_of(token), offset = i % heads * channels;
      if (!is_live(token)) continue;
      const int64_t start = row_start(r), layers = p.sizes.layers;
      const Keys<T> keys = is_own ? Keys<T>{own_keys(r, layer) + offset, width, int64_t(n) * width, nullptr}
                                  : Keys<T>{p.memory_keys + (start * layers + layer) * 2 * width + offset,
                                            layers * 2 * width, width, p.real_slots + start};
      attend(projected + token * shared.wide_stride + offset, keys, is_own ? place_of(token) + 1 : count[r], channels,
             weights, attended + token * shared.stride + offset);
    }
    __syncthreads();  // all heads are done
  }

  __device__ T* scores_of(int token) const { return p.scores + (int64_t(blockIdx.x) * tokens + token) * n; }

  // Scores of the real slots; a warp takes 32 of them.
  __device__ void score_tokens() {
    const int runs = (n + 31) / 32;
    for (int i = warp; i < tokens * runs; i += decoder_warps) {
      const int token = i / runs, r = row_of(token), number = i % runs * 32 + lane;
      if (!is_live(token) || number >= count[r]) continue;
      const int64_t slot = (p.is_head_shared ? 0 : row_start(r)) + p.real_slots[row_start(r) + number];
      const T sum = inner_product(normed + token * shared.stride, p.head_keys + slot * width, width);
      scores_of(token)[number] = (sum + p.head_bias[slot]) / p.temperature;
    }
    __syncthreads();  // the scores are there
  }

  // Picks the row's places in turn, up to one that differs from the draft: what was computed behind it rests on the
  // wrong prefix.
  __device__ void pick_row(int r) {
    const int64_t row = first_row + r, start = row_start(r);
    const int own_length = length[r], first_place = place[r], own_count = count[r];
    if (own_length == 0) return;
    int picked = 0;
    bool is_as_drafted = true;
    while (picked < own_length && is_as_drafted) {
      const int64_t at = start + first_place + picked;
      const int token = r * p.places_per_pass + picked;
      const int forced = first_place + picked < p.forced_places ? number_of(r, p.forced[at]) : -1;
      const bool* allowed = p.candidates == nullptr ? p.remaining + start : p.candidates + start;
      Picked<T> pick =
          pick_slot(scores_of(token), allowed, own_count, p.uniform == nullptr ? nullptr : p.uniform + at, forced);
      // The row goes on, so that its order is one; some slot is always allowed.
      if (pick.number < 0) pick.number = 0;
      while (pick.log_prob != pick.log_prob && !allowed[pick.number]) ++pick.number;
      is_as_drafted = p.draft != nullptr && pick.number == upcoming[token];
      __syncwarp();  // everyone has read what remains
      if (lane == 0) {
        p.remaining[start + pick.number] = false;
        p.order[at] = p.real_slots[start + pick.number];
        p.log_probs[at] = pick.log_prob;
        last[r] = pick.number;
      }
      __syncwarp();  // what remains is up to date
      ++picked;
    }
    if (lane == 0) {
      place[r] = first_place + picked;
      p.work[2 * row] += 1;
      p.work[2 * row + 1] += own_length;
    }
  }

  // The last real slot has no rival: it is taken without a pass, and its log-probability is 0.
  __device__ void end_row(int r) {
    const int64_t row = first_row + r, start = row_start(r);
    if (row >= p.rows) return;
    for (int number = lane; place[r] == count[r] - 1 && number < count[r]; number += 32) {
      if (p.remaining[start + number]) p.order[start + count[r] - 1] = p.real_slots[start + number];
    }
    if (lane == 0) {
      p.progress[3 * row] = count[r];
      p.progress[3 * row + 1] = place[r];
      p.progress[3 * row + 2] = last[r];
    }
  }

  const DecodeArguments<T>& p;
  const LayerParts parts;
  const SharedParts shared;
  const int width, n, warp, lane, block_rows;
  const int64_t first_row;
  T *x, *normed, *attended, *projected, *weights, *partial;  // shared memory, see SharedParts; weights of this warp
  int *count, *place, *last, *length, *upcoming;             // by row: real slots, next place, last pick, pass length
};

// Whether the host launches so many tokens on the architecture that is being compiled for: else the kernel is empty.
#if defined(__CUDA_ARCH__)
template <typename Products, int tokens>
constexpr bool is_launched = Products::is_launched(tokens, __CUDA_ARCH__ >= 800);
#else
template <typename Products, int tokens>
constexpr bool is_launched = true;
#endif

// Launch blocks for the rows, decoder_threads threads and shared_bytes<Products, tokens>(...) bytes.
template <typename Products, int tokens>
__global__ void __launch_bounds__(decoder_threads, 1)
    decode_order_kernel(DecodeArguments<typename Products::Number> arguments) {
  if constexpr (is_launched<Products, tokens>) BlockDecoder<Products, tokens>(arguments).run();
}

}  // namespace softrank

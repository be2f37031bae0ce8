// The cached decoder: tokens through the layers, single rows or whole tiles from the first place to the last.
#pragma once

#include "cpu_kernels.h"
#include "layers.h"

namespace softrank {
namespace {

// Tokens that pass through the layers together: which row of the tile each belongs to and at which position it stands.
struct TokenList {
  int64_t count;
  int64_t row[most_tokens], position[most_tokens];
};

constexpr Workers alone{1, nullptr};

// Scratch of one tile, cut from one allocation.
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
    take(most_parts * padded<T>(shape.slots), &Scratch::weights);
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

// Takes the tokens in scratch.x through all layers, appending to the caches, and leaves the final norm's output in
// scratch.normed. memory_sizes: real slots per row of the tile.
template <typename T>
void run_layers(const TransformerShape& shape, const T* packed, const TokenList& tokens, const int64_t* memory_sizes,
                T* cache, const Scratch<T>& scratch, const Workers& workers) {
  const LayerLayout<T> parts(shape);
  const CacheLayout<T> layout(shape);
  const int64_t width = shape.model_width, stride = padded<T>(width), qkv_stride = padded<T>(3 * width);
  // 1. Queries, keys and values of tokens; keys and values join the caches.
  const auto project = [&](int64_t layer, int64_t first, int64_t end) {
    const Sublayers<T> sublayers(shape, parts, packed + layer * parts.size);
    sublayers.begin(self_norm, self_qkv, scratch.x + first * stride, end - first, scratch.normed + first * stride,
                    scratch.projected + first * qkv_stride, qkv_stride);
    for (int64_t m = first; m < end; ++m) {
      T* keys = cache + layer * layout.layer + tokens.row[m] * layout.row;
      const T* qkv = scratch.projected + m * qkv_stride;
      write_key_value(shape, qkv + width, qkv + 2 * width, tokens.position[m], keys, keys + layout.keys);
    }
  };
  // 2. The rest of the layer, when the keys and values of all tokens are there.
  const auto finish = [&](int64_t layer, int64_t first, int64_t end, T* attention_weights) {
    const Sublayers<T> sublayers(shape, parts, packed + layer * parts.size);
    const int64_t count = end - first;
    T* x = scratch.x + first * stride;
    T* normed = scratch.normed + first * stride;
    T* attended = scratch.attended + first * stride;
    const auto attend_to = [&](int64_t offset, auto length_of) {
      for (int64_t m = first; m < end; ++m) {
        const T* keys = cache + layer * layout.layer + tokens.row[m] * layout.row + offset;
        attend_heads(shape, scratch.projected + m * qkv_stride, keys, keys + layout.keys, length_of(m),
                     attention_weights, scratch.attended + m * stride);
      }
    };
    attend_to(0, [&](int64_t m) { return tokens.position[m] + 1; });
    sublayers.finish(self_norm, self_out, attended, count, x);
    sublayers.begin(memory_norm, memory_query, x, count, normed, scratch.projected + first * qkv_stride, qkv_stride);
    attend_to(layout.keys + layout.values, [&](int64_t m) { return memory_sizes[tokens.row[m]]; });
    sublayers.finish(memory_norm, memory_out, attended, count, x);
    sublayers.feed_forward(count, x, normed, scratch.hidden + first * padded<T>(shape.feed_width));
  };
  // Parts of the tokens wait for each other once per layer.
  for (int64_t layer = 0; layer <= shape.layers; ++layer) {
    for_token_parts(workers, tokens.count, [&](int64_t first, int64_t end, int64_t part_number) {
      if (layer > 0) finish(layer - 1, first, end, scratch.weights + part_number * padded<T>(shape.slots));
      if (layer < shape.layers) {
        project(layer, first, end);
      } else {
        layer_norm(scratch.x + first * stride, end - first, stride, width, packed + shape.layers * parts.size,
                   scratch.normed + first * stride, stride);
      }
    });
  }
}

// Fills the memory keys and values of one row from its real slots, which are compacted: attention does not ask where a
// slot is.
template <typename T>
void open_row(const TransformerShape& shape, const T* packed, const T* memory, const bool* mask, T* cache,
              const Scratch<T>& scratch, const Workers& workers) {
  const LayerLayout<T> parts(shape);
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
    for_token_parts(workers, count, [&](int64_t first, int64_t end, int64_t) {
      for (int64_t layer = 0; layer < shape.layers; ++layer) {
        multiply<T, Store::plain>(scratch.x + first * width, end - first, width,
                                  packed + layer * parts.size + parts.at[memory_key_value], 2 * width, width,
                                  scratch.projected + first * stride, stride);
        T* keys = cache + layer * layout.layer + layout.keys + layout.values;
        for (int64_t m = first; m < end; ++m) {
          const T* key = scratch.projected + m * stride;
          write_key_value(shape, key, key + width, done + m, keys, keys + layout.keys);
        }
      }
    });
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
             cache + row * layout.row, scratch, alone);
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
    run_layers(shape, packed, tokens, memory_sizes, tile.cache, scratch, alone);
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
};

// A row's part of a pass: its tokens begin at `token` and are for `length` places from the row's next one on.
struct PassPart {
  int64_t row, token, length;
};

template <typename T>
class TileDecoder {
 public:
  TileDecoder(const TransformerShape& shape, const T* packed, const DecodeTile<T>& tile, T* cache, T* scratch_numbers,
              const Workers& workers)
      : shape_(shape),
        packed_(packed),
        tile_(tile),
        cache_(cache),
        workers_(workers),
        n_(shape.slots),
        width_(shape.model_width) {
    Scratch<T>::layout(shape, scratch_numbers, &scratch_);
  }

  PickFailure run() {
    for (int64_t row = 0; row < tile_.rows; ++row) begin_row(row);
    // Rows with a choice left go through passes together, as many as there is room for.
    for (int64_t unfinished = tile_.rows; unfinished > 0;) {
      int64_t block = 1;
      if (tile_.draft != nullptr) block = places_to_try(unfinished, right_share(), workers_.parts, most_choices());
      unfinished = tokens_.count = parts_ = 0;
      for (int64_t row = 0; row < tile_.rows; ++row) {
        const RowProgress& own = progress_[row];
        const int64_t choices = own.count - 1 - own.place;
        if (choices <= 0) continue;
        ++unfinished;
        // Forced places are known, not guessed: they go through together, with the first place that is free.
        const int64_t known = tile_.forced_places - own.place + 1;
        const int64_t wanted = known <= block ? block : known < most_tokens ? known : most_tokens;
        const int64_t length = wanted < choices ? wanted : choices;
        if (tokens_.count + length > most_tokens && !run_pass()) return failure_;
        add_tokens(row, length);
      }
      if (parts_ > 0 && !run_pass()) return failure_;
    }
    for (int64_t row = 0; row < tile_.rows; ++row) take_last(row);
    return PickFailure::none;
  }

 private:
  void begin_row(int64_t row) {
    const bool* mask = tile_.mask + row * n_;
    RowProgress& own = progress_[row];
    own = {tile_.real_slots + row * n_, tile_.remaining + row * n_, nullptr, 0, 0, -1};
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
    const int64_t* expected = tile_.draft != nullptr ? tile_.draft : tile_.forced;
    if (expected != nullptr) {
      own.upcoming = tile_.upcoming + row * n_;
      for (int64_t place = 0; place < own.count; ++place) {
        own.upcoming[place] = number_of(own, expected[row * n_ + place]);
      }
    }
    tile_.work[2 * row] = tile_.work[2 * row + 1] = 0;
    memory_sizes_[row] = own.count;
    open_row(shape_, packed_, tile_.memory + row * n_ * width_, mask, cache_ + row * CacheLayout<T>(shape_).row,
             scratch_, workers_);
    transpose_head_keys(shape_, tile_.head_keys + (tile_.is_head_shared ? 0 : row * n_ * width_), own.slots, own.count,
                        head_keys_of(row));
  }

  int64_t most_choices() const {
    int64_t most = 0;
    for (int64_t row = 0; row < tile_.rows; ++row) {
      const int64_t choices = progress_[row].count - 1 - progress_[row].place;
      most = choices > most ? choices : most;
    }
    return most;
  }

  double right_share() const { return double(right_) / double(tried_); }

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

  // Takes the tokens through the layers and picks; false on a failure.
  bool run_pass() {
    run_layers(shape_, packed_, tokens_, memory_sizes_, cache_, scratch_, workers_);
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
      if (own.upcoming != nullptr) {
        is_as_drafted = strike(own, own.last);
        const bool was_forced = own.place <= tile_.forced_places;
        tried_ += !was_forced;
        right_ += !was_forced && is_as_drafted;
      }
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
    const bool* candidates = own.remaining;
    if (tile_.constraints != nullptr) {
      candidates = next_picks(tile_.constraints, row);
      failure_ = PickFailure::too_many_states;
      if (candidates == nullptr) return false;
    }
    failure_ = row_kernels<T>().pick(
        scratch_.scores, candidates, tile_.uniform == nullptr ? nullptr : tile_.uniform + at,
        is_forced ? &forced : nullptr, own.count, &own.last, tile_.log_probs + at, scratch_.pick_weights);
    if (failure_ != PickFailure::none) return false;
    if (tile_.constraints != nullptr) add_pick(tile_.constraints, row, own.last);
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
  const Workers& workers_;
  const int64_t n_, width_;
  Scratch<T> scratch_;
  RowProgress progress_[most_tile_rows];
  int64_t memory_sizes_[most_tile_rows];
  TokenList tokens_{};
  PassPart pass_[most_tokens];
  int64_t parts_ = 0;
  PickFailure failure_ = PickFailure::none;
  int64_t right_ = 9, tried_ = 10;  // places that a draft had right, of those tried; it begins with a guess
};

template <typename T>
PickFailure decode_tile(const TransformerShape& shape, const T* packed, const DecodeTile<T>& tile, T* cache,
                        T* scratch_numbers, const Workers& workers) {
  return TileDecoder<T>(shape, packed, tile, cache, scratch_numbers, workers).run();
}

}  // namespace
}  // namespace softrank

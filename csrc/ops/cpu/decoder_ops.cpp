// The decoder's ops on CPU tensors: tiles of rows in parallel.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "../interruptible.h"
#include "choices.h"
#include "packed.h"

namespace softrank {

const bool* next_picks(RowConstraints* rows, int64_t row) { return rows[row].next(); }
void add_pick(RowConstraints* rows, int64_t row, int64_t number) { rows[row].place(number); }

namespace {

// Tiles of nearly equal size, a multiple of the threads where rows suffice.
struct Tiles {
  int64_t rows, count;

  Tiles(int64_t rows, int64_t most_rows) : rows(rows) {
    const int64_t threads = torch::stable::get_num_threads();
    const int64_t rounds = (rows + threads * most_rows - 1) / (threads * most_rows);
    count = std::min(rows, rounds * threads);
  }
  int64_t first(int64_t tile) const { return rows * tile / count; }

  // body(first row, end row, scratch) for every tile, until `stop` says so; a thread keeps one scratch, made by
  // make_scratch. A single tile does not count as parallel, so that its own work may be.
  template <typename MakeScratch, typename Body>
  void for_each(Stop& stop, MakeScratch make_scratch, Body body) const {
    const auto run = [&](int64_t begin, int64_t end) {
      const auto scratch = make_scratch();
      for (int64_t tile = begin; tile < end && !stop(); ++tile) {
        body(first(tile), first(tile + 1), scratch.get());
        stop.look();
      }
    };
    if (count == 1) {
      run(0, 1);
    } else {
      parallel_rows(count, 1, stop, run);
    }
  }
};

std::tuple<Tensor, Tensor, Tensor> decode_order(const Choices& choices, const std::vector<Tensor>& weights,
                                                const std::optional<Tensor>& packed, int64_t heads, bool norm_first,
                                                const Tensor& memory, const Tensor& tokens, const Tensor& start,
                                                const Tensor& places, const Tensor& head_keys, const Tensor& head_bias,
                                                const Tensor& mask) {
  const bool is_head_shared = check_decoder_inputs(memory, tokens, start, places, head_keys, head_bias, mask);
  const int64_t rows = memory.size(0), n = memory.size(1), width = memory.size(2);
  const TransformerShape shape = shape_of(WeightKind::decoder, weights, packed, heads, norm_first, n, memory);
  const Tensor ready = packed_or_new(shape, weights, packed);
  const Tensor memory_c = made_contiguous(memory), tokens_c = made_contiguous(tokens), start_c = made_contiguous(start);
  const Tensor places_c = made_contiguous(places), keys_c = made_contiguous(head_keys),
               bias_c = made_contiguous(head_bias);
  const Tensor mask_c = made_contiguous(mask);
  const Tensor order = torch::stable::new_empty(memory, {rows, n}, ScalarType::Long);
  const Tensor log_probs = torch::stable::new_empty(memory, {rows, n}, memory.scalar_type());
  const Tensor work = torch::stable::new_empty(memory, {rows, 2}, ScalarType::Long);
  std::atomic<PickFailure> failure{PickFailure::none};
  Stop stop(is_interrupted);
  with_number_type(memory, "memory", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const BatchChoices<T> given(choices, data_of<bool>(mask_c), rows, n);
    const bool is_ruled = !given.rules.is_empty();
    const TransformerKernels<T>& kernels = transformer_kernels<T>();
    const int64_t cache_row = CacheLayout<T>(shape).row;
    const int64_t scratch_numbers = kernels.scratch_numbers(shape);
    const Workers workers = workers_for(rows);
    const Tiles tiles(rows, tile_rows<T>(shape));
    const int64_t largest = tiles.count == 0 ? 0 : (rows + tiles.count - 1) / tiles.count;
    struct Scratch {
      std::unique_ptr<T[]> numbers, cache;
      std::unique_ptr<int64_t[]> real_slots, upcoming;
      std::unique_ptr<bool[]> remaining;
      std::unique_ptr<RowConstraints[]> constraints;
    };
    tiles.for_each(
        stop,
        [&] {
          // Braces: clang 14 makes no aggregate by parentheses.
          return std::unique_ptr<Scratch>(new Scratch{std::make_unique_for_overwrite<T[]>(scratch_numbers),
                                                      std::make_unique_for_overwrite<T[]>(largest * cache_row),
                                                      std::make_unique_for_overwrite<int64_t[]>(largest * n),
                                                      std::make_unique_for_overwrite<int64_t[]>(largest * n),
                                                      std::make_unique_for_overwrite<bool[]>(largest * n),
                                                      std::make_unique<RowConstraints[]>(is_ruled ? largest : 0)});
        },
        [&](int64_t first, int64_t end, Scratch* scratch) {
          DecodeTile<T> tile{};
          tile.rows = end - first;
          tile.memory = data_of<T>(memory_c) + first * n * width;
          tile.tokens = data_of<T>(tokens_c) + first * n * width;
          tile.start = data_of<T>(start_c) + first * width;
          tile.places = data_of<T>(places_c);
          tile.head_keys = data_of<T>(keys_c) + (is_head_shared ? 0 : first * n * width);
          tile.head_bias = data_of<T>(bias_c) + (is_head_shared ? 0 : first * n);
          tile.is_head_shared = is_head_shared;
          tile.mask = data_of<bool>(mask_c) + first * n;
          tile.uniform = given.uniform.at(first * n);
          tile.forced = given.forced.at(first * n);
          tile.forced_places = given.forced_places;
          tile.draft = given.draft.at(first * n);
          tile.temperature = given.temperature;
          tile.order = mutable_data_of<int64_t>(order) + first * n;
          tile.log_probs = mutable_data_of<T>(log_probs) + first * n;
          tile.work = mutable_data_of<int64_t>(work) + first * 2;
          tile.real_slots = scratch->real_slots.get();
          tile.upcoming = scratch->upcoming.get();
          tile.remaining = scratch->remaining.get();
          tile.constraints = is_ruled ? scratch->constraints.get() : nullptr;
          for (int64_t row = 0; tile.constraints != nullptr && row < tile.rows; ++row) {
            tile.constraints[row].begin(given.rules.row(first + row), tile.mask + row * n, n, stop);
          }
          const PickFailure tile_failure = kernels.decode_tile(shape, packed_data<T>(ready), tile, scratch->cache.get(),
                                                               scratch->numbers.get(), workers);
          if (tile_failure == PickFailure::too_many_states) {
            if (!stop()) failure = tile_failure;
            stop.stop();  // for the other rows too
          } else if (tile_failure != PickFailure::none) {
            failure = tile_failure;
          }
        });
  });
  STD_TORCH_CHECK(failure.load() != PickFailure::too_many_states, RowConstraints::too_hard);
  STD_TORCH_CHECK(!stop(), Stop::sentence);
  STD_TORCH_CHECK(failure.load() != PickFailure::nothing_remains, "constraints must leave an order, they leave none");
  STD_TORCH_CHECK(failure.load() == PickFailure::none,
                  "scores must not be NaN for a real slot: memory, tokens or weights hold NaN or infinities");
  return {order, log_probs, work};
}

// What the decoder works from, beside places and mask. head (B, N, D + 1): keys and bias of a pointer, empty where they
// are given.
using Prepared = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // memory, tokens, start, head

// The items take their slots, and run through encoder and head.
Prepared prepare_decoder(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads,
                         bool norm_first, const Tensor& embedded, const std::optional<Tensor>& order,
                         const Tensor& time, const Tensor& start, const Tensor& places, const Tensor& head,
                         const std::optional<Tensor>& head_bias, const std::optional<Tensor>& packed_head,
                         const Tensor& mask) {
  check_dimensions(embedded, "embedded", 3);
  const int64_t rows = embedded.size(0), n = embedded.size(1), width = embedded.size(2);
  const auto make = [&](std::initializer_list<int64_t> shape) {
    return torch::stable::new_empty(embedded, shape, embedded.scalar_type());
  };
  const Tensor items = made_contiguous(embedded), times = made_contiguous(time), first = made_contiguous(start);
  const Tensor place_rows = made_contiguous(places), real = made_contiguous(mask);
  const OptionalData<int64_t> arrangement(order);
  const ScalarType dtype = embedded.scalar_type();
  STD_TORCH_CHECK(n > 0 && width > 0, "embedded must be (B, N, D) with N and D at least 1, got N = ", n,
                  ", D = ", width);
  const bool is_time_shared = time.dim() > 0 && time.size(0) == 1;
  check_shape(time, "time", dtype, {is_time_shared ? 1 : rows, 1, width});
  check_shape(start, "start", dtype, {width});
  check_shape(places, "places", dtype, {n, width});
  check_shape(mask, "mask", ScalarType::Bool, {rows, n});
  STD_TORCH_CHECK(head_bias || (head.dim() == 2 && head.size(0) == width + 1 && head.size(1) == width),
                  "head must be (D + 1, D), or come with a head_bias");
  STD_TORCH_CHECK(head_bias || head.scalar_type() == dtype, "head has the wrong dtype");
  check_if_given(order, "order", ScalarType::Long, {rows, n});
  std::vector<int64_t> seen_in_row(order ? n : 0, -1);
  for (int64_t at = 0; order && at < rows * n; ++at) {
    const int64_t item = arrangement.data[at];
    STD_TORCH_CHECK(item >= 0 && item < n, "order must hold items from 0 to ", n - 1, ", got ", item);
    STD_TORCH_CHECK(seen_in_row[item] != at / n, "order must hold each item once, row ", at / n, " has ", item,
                    " twice");
    seen_in_row[item] = at / n;
  }
  const Tensor x = make({rows, n, width}), tokens = make({rows, n, width}), starts = make({rows, width});
  with_number_type(embedded, "embedded", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T *from = data_of<T>(items), *time_data = data_of<T>(times), *start_data = data_of<T>(first);
    const T* place_data = data_of<T>(place_rows);
    const bool* is_real = data_of<bool>(real);
    T *x_data = mutable_data_of<T>(x), *token_data = mutable_data_of<T>(tokens);
    T* starts_data = mutable_data_of<T>(starts);
    torch::stable::parallel_for(0, rows, std::max<int64_t>(1, 32768 / (n * width)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* shift = time_data + (is_time_shared ? 0 : row * width);
        for (int64_t c = 0; c < width; ++c) starts_data[row * width + c] = start_data[c] + shift[c];
        // A slot's position counts the real slots before it.
        for (int64_t slot = 0, position = 0; slot < n; ++slot) {
          const int64_t at = row * n + slot;
          const int64_t item = arrangement.data == nullptr ? slot : arrangement.data[at];
          const T *item_data = from + (row * n + item) * width, *place = place_data + position * width;
          for (int64_t c = 0; c < width; ++c) {
            const T token = item_data[c] + shift[c];
            token_data[at * width + c] = token;
            x_data[at * width + c] = token + place[c];
          }
          position += is_real[at];
        }
      }
    });
  });
  const Tensor memory = encode(weights, packed, heads, norm_first, x, real);
  return {memory, tokens, starts, head_bias ? make({0}) : project(memory, head, packed_head)};
}

// Keys (B, N, D) and bias (B, N) of a pointer, of which both is (B, N, D + 1).
std::tuple<Tensor, Tensor> split_head(const Tensor& both) {
  const int64_t rows = both.size(0), n = both.size(1), width = both.size(2) - 1;
  const Tensor keys = torch::stable::new_empty(both, {rows, n, width}, both.scalar_type());
  const Tensor bias = torch::stable::new_empty(both, {rows, n}, both.scalar_type());
  with_number_type(both, "head", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = data_of<T>(both);
    T *key_data = mutable_data_of<T>(keys), *bias_data = mutable_data_of<T>(bias);
    torch::stable::parallel_for(0, rows * n, std::max<int64_t>(1, 32768 / width), [=](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        const T* own = from + at * (width + 1);
        std::copy(own, own + width, key_data + at * width);
        bias_data[at] = own[width];
      }
    });
  });
  return {keys, bias};
}

// One op for a whole prediction, because for a single instance the calls between its parts cost as much as their work.
std::tuple<Tensor, Tensor, Tensor> predict_order(const Choices& choices, const std::vector<Tensor>& encoder,
                                                 const std::optional<Tensor>& packed_encoder, int64_t encoder_heads,
                                                 bool encoder_norm_first, const std::vector<Tensor>& decoder,
                                                 const std::optional<Tensor>& packed_decoder, int64_t decoder_heads,
                                                 bool decoder_norm_first, const Tensor& embedded,
                                                 const std::optional<Tensor>& order, const Tensor& time,
                                                 const Tensor& start, const Tensor& places, const Tensor& head,
                                                 const std::optional<Tensor>& head_bias,
                                                 const std::optional<Tensor>& packed_head, const Tensor& mask) {
  const auto [memory, tokens, starts, both] =
      prepare_decoder(encoder, packed_encoder, encoder_heads, encoder_norm_first, embedded, order, time, start, places,
                      head, head_bias, packed_head, mask);
  const auto [keys, bias] = head_bias ? std::tuple(head, *head_bias) : split_head(both);
  return decode_order(choices, decoder, packed_decoder, decoder_heads, decoder_norm_first, memory, tokens, starts,
                      places, keys, bias, mask);
}

Tensor open_decoder(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads,
                    bool norm_first, const Tensor& memory, const Tensor& mask) {
  check_dimensions(memory, "memory", 3);
  const int64_t rows = memory.size(0), n = memory.size(1), width = memory.size(2);
  const TransformerShape shape = shape_of(WeightKind::decoder, weights, packed, heads, norm_first, n, memory);
  const Tensor ready = packed_or_new(shape, weights, packed);
  check_shape(mask, "mask", ScalarType::Bool, {rows, n});
  const Tensor memory_c = made_contiguous(memory), mask_c = made_contiguous(mask);
  return with_number_type(memory, "memory", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const TransformerKernels<T>& kernels = transformer_kernels<T>();
    const int64_t cache_row = CacheLayout<T>(shape).row;
    const Tensor cache = torch::stable::new_zeros(memory, {rows, cache_row}, memory.scalar_type());
    const int64_t scratch_numbers = kernels.scratch_numbers(shape);
    Stop stop(is_interrupted);
    Tiles(rows, most_tile_rows)
        .for_each(
            stop, [&] { return std::make_unique_for_overwrite<T[]>(scratch_numbers); },
            [&](int64_t first, int64_t end, T* scratch) {
              kernels.open_tile(shape, packed_data<T>(ready), end - first, data_of<T>(memory_c) + first * n * width,
                                data_of<bool>(mask_c) + first * n, mutable_data_of<T>(cache) + first * cache_row,
                                scratch);
            });
    STD_TORCH_CHECK(!stop(), Stop::sentence);
    return cache;
  });
}

Tensor advance_decoder(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads,
                       bool norm_first, const Tensor& cache, const Tensor& inputs, const Tensor& lengths,
                       const Tensor& mask) {
  check_dimensions(inputs, "inputs", 3);
  check_dimensions(mask, "mask", 2);
  const int64_t rows = inputs.size(0), positions = inputs.size(1), width = inputs.size(2), n = mask.size(1);
  const TransformerShape shape = shape_of(WeightKind::decoder, weights, packed, heads, norm_first, n, inputs);
  const Tensor ready = packed_or_new(shape, weights, packed);
  check_shape(lengths, "lengths", ScalarType::Long, {rows});
  check_shape(mask, "mask", ScalarType::Bool, {rows, n});
  const Tensor inputs_c = made_contiguous(inputs), lengths_c = made_contiguous(lengths);
  const Tensor mask_c = made_contiguous(mask);
  const Tensor states = torch::stable::new_zeros(inputs, {rows, positions, width}, inputs.scalar_type());
  with_number_type(inputs, "inputs", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const TransformerKernels<T>& kernels = transformer_kernels<T>();
    const int64_t cache_row = CacheLayout<T>(shape).row;
    STD_TORCH_CHECK(
        cache.is_contiguous() && cache.numel() == rows * cache_row && cache.scalar_type() == inputs.scalar_type(),
        "cache must be what open_decoder returned for this memory");
    const int64_t* length_data = data_of<int64_t>(lengths_c);
    for (int64_t row = 0; row < rows; ++row) {
      STD_TORCH_CHECK(length_data[row] >= 0 && length_data[row] <= n - positions, "lengths must leave room for ",
                      positions, " positions of ", n, ", got ", length_data[row], " in row ", row);
    }
    const int64_t scratch_numbers = kernels.scratch_numbers(shape);
    Stop stop(is_interrupted);
    Tiles(rows, most_tile_rows)
        .for_each(
            stop, [&] { return std::make_unique_for_overwrite<T[]>(scratch_numbers); },
            [&](int64_t first, int64_t end, T* scratch) {
              AdvanceTile<T> tile{};
              tile.rows = end - first;
              tile.positions = positions;
              tile.cache = mutable_data_of<T>(cache) + first * cache_row;
              tile.inputs = data_of<T>(inputs_c) + first * positions * width;
              tile.lengths = length_data + first;
              tile.mask = data_of<bool>(mask_c) + first * n;
              tile.states = mutable_data_of<T>(states) + first * positions * width;
              kernels.advance_tile(shape, packed_data<T>(ready), tile, scratch);
            });
    STD_TORCH_CHECK(!stop(), Stop::sentence);
  });
  return states;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(softrank_ext, CPU, m) {
  m.impl("decode_order", TORCH_BOX(&WithChoices<&decode_order>::call));
  m.impl("prepare_decoder", TORCH_BOX(&prepare_decoder));
  m.impl("predict_order", TORCH_BOX(&WithChoices<&predict_order>::call));
  m.impl("open_decoder", TORCH_BOX(&open_decoder));
  m.impl("advance_decoder", TORCH_BOX(&advance_decoder));
}

}  // namespace softrank

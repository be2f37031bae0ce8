// The encoder and decoder ops on CPU tensors: rows, or tiles of them, in parallel.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "../tensors.h"
#include "constraints.h"
#include "cpu_kernels.h"

namespace softrank {

const bool* next_picks(RowConstraints* rows, int64_t row) { return rows[row].next(); }
void add_pick(RowConstraints* rows, int64_t row, int64_t number) { rows[row].place(number); }

namespace {

// Sizes of a transformer. The list of weights may be empty if they come packed: handing over a hundred tensors costs as
// much as a layer's work on a short list.
TransformerShape shape_of(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t per_layer,
                          int64_t heads, bool norm_first, int64_t slots) {
  if (weights.empty() && packed) {
    return with_number_type(*packed, "packed", [&](auto* type) -> TransformerShape {
      using T = std::remove_pointer_t<decltype(type)>;
      STD_TORCH_CHECK(packed->is_contiguous() && packed->numel() > panel_width<T>, "packed must be packed weights");
      const T* sizes = data_of<T>(*packed) + packed->numel() - panel_width<T>;
      return {int64_t(sizes[0]), int64_t(sizes[1]), int64_t(sizes[2]), heads, slots, norm_first};
    });
  }
  STD_TORCH_CHECK(weights.size() > 2 && (weights.size() - 2) % per_layer == 0, "weights must be ", per_layer,
                  " tensors per layer and 2 of the final norm, got ", weights.size());
  // The last weight and bias of a layer are those of feed_out, before them stands feed_in's bias.
  return {int64_t(weights.size() - 2) / per_layer,
          weights[0].size(0),
          weights[per_layer - 3].size(0),
          heads,
          slots,
          norm_first};
}

TransformerShape decoder_shape(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads,
                               bool norm_first, int64_t slots) {
  return shape_of(weights, packed, tensors_per_decoder_layer, heads, norm_first, slots);
}

TransformerShape encoder_shape(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads,
                               bool norm_first, int64_t slots) {
  return shape_of(weights, packed, tensors_per_encoder_layer, heads, norm_first, slots);
}

// The weights' data, kept alive and contiguous.
template <typename T>
struct WeightData {
  std::vector<Tensor> tensors;
  std::vector<const T*> data;

  explicit WeightData(const std::vector<Tensor>& weights) {
    for (const Tensor& weight : weights) {
      tensors.push_back(made_contiguous(weight));
      data.push_back(data_of<T>(tensors.back()));
    }
  }
};

// Packs layer by layer in parallel: pack(kernels, weight data, first layer, end layer, packed).
template <typename T, typename Pack>
Tensor pack_layers(const TransformerShape& shape, const std::vector<Tensor>& weights, int64_t numbers, Pack pack) {
  const Tensor packed = torch::stable::new_empty(weights[0], {numbers}, weights[0].scalar_type());
  const WeightData<T> list(weights);
  T* data = mutable_data_of<T>(packed);
  torch::stable::parallel_for(0, shape.layers, 1, [&](int64_t first, int64_t end) {
    pack(transformer_kernels<T>(), list.data.data(), first, end, data);
  });
  T* sizes = data + numbers - panel_width<T>;
  std::fill(sizes, data + numbers, T(0));
  sizes[0] = T(shape.layers), sizes[1] = T(shape.model_width), sizes[2] = T(shape.feed_width);
  return packed;
}

Tensor pack_decoder(const std::vector<Tensor>& weights) {
  const TransformerShape shape = decoder_shape(weights, std::nullopt, 1, true, 1);
  return with_number_type(weights[0], "weights", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    return pack_layers<T>(shape, weights, packed_decoder_numbers<T>(shape),
                          [&](auto& kernels, auto... rest) { kernels.pack_decoder(shape, rest...); });
  });
}

Tensor pack_encoder(const std::vector<Tensor>& weights) {
  const TransformerShape shape = encoder_shape(weights, std::nullopt, 1, true, 1);
  return with_number_type(weights[0], "weights", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    return pack_layers<T>(shape, weights, packed_encoder_numbers<T>(shape),
                          [&](auto& kernels, auto... rest) { kernels.pack_encoder(shape, rest...); });
  });
}

Tensor pack_projection(const Tensor& weight) {
  const Tensor weight_c = made_contiguous(weight);
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  return with_number_type(weight, "weight", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t numbers = packed_projection_numbers<T>(outputs, inputs);
    const Tensor packed = torch::stable::new_empty(weight, {numbers}, weight.scalar_type());
    transformer_kernels<T>().pack_projection(data_of<T>(weight_c), outputs, inputs, mutable_data_of<T>(packed));
    return packed;
  });
}

Tensor project(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& packed) {
  constexpr int64_t fewest_rows = 64;  // for a thread of their own
  const int64_t outputs = weight.size(0), inputs = weight.size(1), rows = x.size(0) * x.size(1);
  const Tensor ready = packed ? *packed : pack_projection(weight);
  const Tensor x_c = made_contiguous(x);
  const Tensor out = torch::stable::new_empty(x, {x.size(0), x.size(1), outputs}, x.scalar_type());
  with_number_type(x, "x", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    STD_TORCH_CHECK(ready.numel() == packed_projection_numbers<T>(outputs, inputs),
                    "packed must be what pack_projection returned for this weight");
    torch::stable::parallel_for(0, rows, fewest_rows, [&](int64_t begin, int64_t end) {
      const auto product = std::make_unique_for_overwrite<T[]>(most_tokens * padded<T>(outputs));
      transformer_kernels<T>().project(data_of<T>(ready), end - begin, data_of<T>(x_c) + begin * inputs, outputs,
                                       inputs, mutable_data_of<T>(out) + begin * outputs, product.get());
    });
  });
  return out;
}

void run_parts(int64_t parts, void (*body)(void* context, int64_t part), void* context) {
  torch::stable::parallel_for(0, parts, 1, [=](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) body(context, part);
  });
}

// A single row is shared by the threads; of more rows, each thread takes its own.
Workers workers_for(int64_t rows) {
  return {rows == 1 ? std::min<int64_t>(torch::stable::get_num_threads(), most_parts) : 1, run_parts};
}

Tensor encode(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads, bool norm_first,
              const Tensor& x, const Tensor& mask) {
  const int64_t rows = x.size(0), n = x.size(1), width = x.size(2);
  const TransformerShape shape = encoder_shape(weights, packed, heads, norm_first, n);
  const Tensor ready = packed ? *packed : pack_encoder(weights);
  const Tensor x_c = made_contiguous(x), mask_c = made_contiguous(mask);
  const Tensor memory = torch::stable::empty_like(x_c);
  with_number_type(x, "x", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    STD_TORCH_CHECK(shape.model_width == width && ready.scalar_type() == x.scalar_type() &&
                        ready.numel() == packed_encoder_numbers<T>(shape),
                    "packed must be what pack_encoder returned for weights of this width and dtype");
    const TransformerKernels<T>& kernels = transformer_kernels<T>();
    const int64_t threads = torch::stable::get_num_threads();
    const Workers workers = workers_for(rows);
    const auto encode_range = [&](int64_t begin, int64_t end) {
      const auto scratch = std::make_unique_for_overwrite<T[]>(kernels.encoder_scratch_numbers(shape, workers.parts));
      kernels.encode_rows(shape, data_of<T>(ready), end - begin, data_of<T>(x_c) + begin * n * width,
                          data_of<bool>(mask_c) + begin * n, mutable_data_of<T>(memory) + begin * n * width,
                          scratch.get(), workers);
    };
    if (workers.parts > 1) {
      encode_range(0, rows);
    } else {
      torch::stable::parallel_for(0, rows, (rows + threads - 1) / threads, encode_range);
    }
  });
  return memory;
}

// Tiles of nearly equal size, a multiple of the threads where rows suffice.
struct Tiles {
  int64_t rows, count;

  Tiles(int64_t rows, int64_t most_rows) : rows(rows) {
    const int64_t threads = torch::stable::get_num_threads();
    const int64_t rounds = (rows + threads * most_rows - 1) / (threads * most_rows);
    count = std::min(rows, rounds * threads);
  }
  int64_t first(int64_t tile) const { return rows * tile / count; }

  // body(first row, end row, scratch) for every tile; a thread keeps one scratch, made by make_scratch.
  // A single tile does not count as parallel, so that its own work may be.
  template <typename MakeScratch, typename Body>
  void for_each(MakeScratch make_scratch, Body body) const {
    const auto run = [&](int64_t begin, int64_t end) {
      const auto scratch = make_scratch();
      for (int64_t tile = begin; tile < end; ++tile) body(first(tile), first(tile + 1), scratch.get());
    };
    if (count == 1) {
      run(0, 1);
    } else {
      torch::stable::parallel_for(0, count, 1, run);
    }
  }
};

std::tuple<Tensor, Tensor, Tensor> decode_order(
    const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads, bool norm_first,
    const Tensor& memory, const Tensor& tokens, const Tensor& start, const Tensor& places, const Tensor& head_keys,
    const Tensor& head_bias, const Tensor& mask, const std::optional<Tensor>& uniform,
    const std::optional<Tensor>& forced_order, double temperature, std::optional<int64_t> forced_places,
    const std::optional<Tensor>& draft, const std::optional<Tensor>& before, const std::optional<Tensor>& allowed,
    const std::optional<Tensor>& group) {
  const int64_t rows = memory.size(0), n = memory.size(1), width = memory.size(2);
  const TransformerShape shape = decoder_shape(weights, packed, heads, norm_first, n);
  const Tensor ready = packed ? *packed : pack_decoder(weights);
  const Tensor memory_c = made_contiguous(memory), tokens_c = made_contiguous(tokens), start_c = made_contiguous(start);
  const Tensor places_c = made_contiguous(places), keys_c = made_contiguous(head_keys),
               bias_c = made_contiguous(head_bias);
  const Tensor mask_c = made_contiguous(mask);
  const Tensor uniform_c = uniform ? made_contiguous(*uniform) : mask_c;
  const Tensor forced_c = forced_order ? made_contiguous(*forced_order) : mask_c;
  const Tensor draft_c = draft ? made_contiguous(*draft) : mask_c;
  const bool is_head_shared = head_keys.size(0) == 1;
  const BatchRules rules(before, allowed, group, n);
  const Tensor order = torch::stable::new_empty(memory, {rows, n}, ScalarType::Long);
  const Tensor log_probs = torch::stable::new_empty(memory, {rows, n}, memory.scalar_type());
  const Tensor work = torch::stable::new_empty(memory, {rows, 2}, ScalarType::Long);
  std::atomic<PickFailure> failure{PickFailure::none};
  with_number_type(memory, "memory", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    STD_TORCH_CHECK(shape.model_width == width && ready.scalar_type() == memory.scalar_type() &&
                        ready.numel() == packed_decoder_numbers<T>(shape),
                    "packed must be what pack_decoder returned for weights of this width and dtype");
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
        [&] {
          return std::make_unique<Scratch>(std::make_unique_for_overwrite<T[]>(scratch_numbers),
                                           std::make_unique_for_overwrite<T[]>(largest * cache_row),
                                           std::make_unique_for_overwrite<int64_t[]>(largest * n),
                                           std::make_unique_for_overwrite<int64_t[]>(largest * n),
                                           std::make_unique_for_overwrite<bool[]>(largest * n),
                                           std::make_unique<RowConstraints[]>(rules.is_empty() ? 0 : largest));
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
          tile.uniform = uniform ? data_of<T>(uniform_c) + first * n : nullptr;
          tile.forced = forced_order ? data_of<int64_t>(forced_c) + first * n : nullptr;
          tile.forced_places = forced_order ? forced_places.value_or(n) : 0;
          tile.draft = draft ? data_of<int64_t>(draft_c) + first * n : nullptr;
          tile.temperature = T(temperature);
          tile.order = mutable_data_of<int64_t>(order) + first * n;
          tile.log_probs = mutable_data_of<T>(log_probs) + first * n;
          tile.work = mutable_data_of<int64_t>(work) + first * 2;
          tile.real_slots = scratch->real_slots.get();
          tile.upcoming = scratch->upcoming.get();
          tile.remaining = scratch->remaining.get();
          tile.constraints = rules.is_empty() ? nullptr : scratch->constraints.get();
          for (int64_t row = 0; tile.constraints != nullptr && row < tile.rows; ++row) {
            tile.constraints[row].begin(rules.row(first + row), tile.mask + row * n, n);
          }
          const PickFailure tile_failure = kernels.decode_tile(shape, data_of<T>(ready), tile, scratch->cache.get(),
                                                               scratch->numbers.get(), workers);
          if (tile_failure != PickFailure::none) failure = tile_failure;
        });
  });
  STD_TORCH_CHECK(failure.load() != PickFailure::too_many_states, RowConstraints::too_hard);
  STD_TORCH_CHECK(failure.load() != PickFailure::nothing_remains, "constraints must leave an order, they leave none");
  STD_TORCH_CHECK(failure.load() == PickFailure::none,
                  "scores must not be NaN for a real slot: memory, tokens or weights hold NaN or infinities");
  return {order, log_probs, work};
}

// One prediction of the reverse process: the items take their slots, and run through encoder, head and decoder. One op,
// because for a single instance the calls between these cost as much as their work.
std::tuple<Tensor, Tensor, Tensor> predict_order(
    const std::vector<Tensor>& encoder, const std::optional<Tensor>& packed_encoder, const std::vector<Tensor>& decoder,
    const std::optional<Tensor>& packed_decoder, int64_t heads, bool norm_first, const Tensor& embedded,
    const std::optional<Tensor>& order, const Tensor& time, const Tensor& start, const Tensor& places,
    const Tensor& head, const std::optional<Tensor>& head_bias, const std::optional<Tensor>& packed_head,
    const Tensor& mask, const std::optional<Tensor>& uniform, const std::optional<Tensor>& forced_order,
    double temperature, std::optional<int64_t> forced_places, const std::optional<Tensor>& draft,
    const std::optional<Tensor>& before, const std::optional<Tensor>& allowed, const std::optional<Tensor>& group) {
  const int64_t rows = embedded.size(0), n = embedded.size(1), width = embedded.size(2);
  const auto make = [&](std::initializer_list<int64_t> shape) {
    return torch::stable::new_empty(embedded, shape, embedded.scalar_type());
  };
  const Tensor items = made_contiguous(embedded), times = made_contiguous(time), first = made_contiguous(start);
  const Tensor place_rows = made_contiguous(places), real = made_contiguous(mask);
  const OptionalData<int64_t> arrangement(order);
  STD_TORCH_CHECK((time.numel() == width || time.numel() == rows * width) && start.numel() == width &&
                      places.numel() == n * width && mask.numel() == rows * n,
                  "time, start, places and mask must fit embedded (B, N, D): (B or 1, 1, D), (D,), (N, D), (B, N)");
  STD_TORCH_CHECK(head_bias || (head.size(0) == width + 1 && head.size(1) == width),
                  "head must be (D + 1, D), or come with a head_bias");
  STD_TORCH_CHECK(!order || order->numel() == rows * n, "order must be (B, N) as embedded is (B, N, D)");
  for (int64_t at = 0; order && at < rows * n; ++at) {
    STD_TORCH_CHECK(arrangement.data[at] >= 0 && arrangement.data[at] < n, "order must hold items from 0 to ", n - 1,
                    ", got ", arrangement.data[at]);
  }
  const Tensor x = make({rows, n, width}), tokens = make({rows, n, width}), starts = make({rows, width});
  return with_number_type(embedded, "embedded", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T *from = data_of<T>(items), *time_data = data_of<T>(times), *start_data = data_of<T>(first);
    const T* place_data = data_of<T>(place_rows);
    const bool* is_real = data_of<bool>(real);
    T *x_data = mutable_data_of<T>(x), *token_data = mutable_data_of<T>(tokens);
    T* starts_data = mutable_data_of<T>(starts);
    const bool is_time_shared = time.numel() == width;
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
    const Tensor memory = encode(encoder, packed_encoder, heads, norm_first, x, real);
    const auto decode = [&](const Tensor& keys, const Tensor& bias) {
      return decode_order(decoder, packed_decoder, heads, norm_first, memory, tokens, starts, place_rows, keys, bias,
                          real, uniform, forced_order, temperature, forced_places, draft, before, allowed, group);
    };
    if (head_bias) return decode(head, *head_bias);
    const Tensor projected = project(memory, head, packed_head);
    const Tensor keys = make({rows, n, width}), bias = make({rows, n});
    const T* projected_data = data_of<T>(projected);
    T *key_data = mutable_data_of<T>(keys), *bias_data = mutable_data_of<T>(bias);
    torch::stable::parallel_for(0, rows * n, std::max<int64_t>(1, 32768 / width), [=](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        const T* both = projected_data + at * (width + 1);
        std::copy(both, both + width, key_data + at * width);
        bias_data[at] = both[width];
      }
    });
    return decode(keys, bias);
  });
}

Tensor open_decoder(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads,
                    const Tensor& memory, const Tensor& mask) {
  const int64_t rows = memory.size(0), n = memory.size(1), width = memory.size(2);
  const TransformerShape shape = decoder_shape(weights, packed, heads, true, n);
  const Tensor ready = packed ? *packed : pack_decoder(weights);
  const Tensor memory_c = made_contiguous(memory), mask_c = made_contiguous(mask);
  return with_number_type(memory, "memory", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const TransformerKernels<T>& kernels = transformer_kernels<T>();
    const int64_t cache_row = CacheLayout<T>(shape).row;
    const Tensor cache = torch::stable::new_zeros(memory, {rows, cache_row}, memory.scalar_type());
    const int64_t scratch_numbers = kernels.scratch_numbers(shape);
    Tiles(rows, most_tile_rows)
        .for_each([&] { return std::make_unique_for_overwrite<T[]>(scratch_numbers); },
                  [&](int64_t first, int64_t end, T* scratch) {
                    kernels.open_tile(shape, data_of<T>(ready), end - first, data_of<T>(memory_c) + first * n * width,
                                      data_of<bool>(mask_c) + first * n, mutable_data_of<T>(cache) + first * cache_row,
                                      scratch);
                  });
    return cache;
  });
}

Tensor advance_decoder(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads,
                       bool norm_first, const Tensor& cache, const Tensor& inputs, const Tensor& lengths,
                       const Tensor& mask) {
  const int64_t rows = inputs.size(0), positions = inputs.size(1), width = inputs.size(2), n = mask.size(1);
  const TransformerShape shape = decoder_shape(weights, packed, heads, norm_first, n);
  const Tensor ready = packed ? *packed : pack_decoder(weights);
  const Tensor inputs_c = made_contiguous(inputs), lengths_c = made_contiguous(lengths);
  const Tensor mask_c = made_contiguous(mask);
  const Tensor states = torch::stable::new_zeros(inputs, {rows, positions, width}, inputs.scalar_type());
  with_number_type(inputs, "inputs", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const TransformerKernels<T>& kernels = transformer_kernels<T>();
    const int64_t cache_row = CacheLayout<T>(shape).row;
    STD_TORCH_CHECK(cache.is_contiguous() && cache.numel() == rows * cache_row,
                    "cache must be what open_decoder returned for this memory");
    const int64_t* length_data = data_of<int64_t>(lengths_c);
    for (int64_t row = 0; row < rows; ++row) {
      STD_TORCH_CHECK(length_data[row] >= 0 && length_data[row] + positions <= n, "lengths must leave room for ",
                      positions, " positions of ", n, ", got ", length_data[row], " in row ", row);
    }
    const int64_t scratch_numbers = kernels.scratch_numbers(shape);
    Tiles(rows, most_tile_rows)
        .for_each([&] { return std::make_unique_for_overwrite<T[]>(scratch_numbers); },
                  [&](int64_t first, int64_t end, T* scratch) {
                    AdvanceTile<T> tile{};
                    tile.rows = end - first;
                    tile.positions = positions;
                    tile.cache = mutable_data_of<T>(cache) + first * cache_row;
                    tile.inputs = data_of<T>(inputs_c) + first * positions * width;
                    tile.lengths = length_data + first;
                    tile.mask = data_of<bool>(mask_c) + first * n;
                    tile.states = mutable_data_of<T>(states) + first * positions * width;
                    kernels.advance_tile(shape, data_of<T>(ready), tile, scratch);
                  });
  });
  return states;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(softrank_ext, CPU, m) {
  m.impl("pack_encoder", TORCH_BOX(&pack_encoder));
  m.impl("encode", TORCH_BOX(&encode));
  m.impl("pack_projection", TORCH_BOX(&pack_projection));
  m.impl("project", TORCH_BOX(&project));
  m.impl("pack_decoder", TORCH_BOX(&pack_decoder));
  m.impl("decode_order", TORCH_BOX(&decode_order));
  m.impl("predict_order", TORCH_BOX(&predict_order));
  m.impl("open_decoder", TORCH_BOX(&open_decoder));
  m.impl("advance_decoder", TORCH_BOX(&advance_decoder));
}

}  // namespace softrank

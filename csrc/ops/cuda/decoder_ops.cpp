// The decoder on CUDA tensors: weights are packed, then one launch gives the memory's keys and one the whole order.
//
// Nothing here waits for the device, except under rules: then the host says place by place what may come next, and
// waits once per place. A pick that fails (a NaN score) is marked by a log-probability of NaN, which callers look for
// once at their end.
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../arguments.h"
#include "../signals.h"
#include "decoder_launches.h"
#include "decoder_plan.h"
#include "launch_place.h"

namespace softrank {
namespace {

constexpr int64_t tensors_per_layer = 20;  // those of ops.LAYER_PARTS["decoder"]

DecoderSizes sizes_of(const std::vector<Tensor>& weights, int64_t heads, bool norm_first, int64_t slots) {
  STD_TORCH_CHECK(int64_t(weights.size()) > tensors_per_layer && (weights.size() - 2) % tensors_per_layer == 0,
                  "weights must be ", tensors_per_layer, " tensors per layer and 2 of the final norm, got ",
                  weights.size(), "; on CUDA the list goes with packed weights too");
  const int64_t layers = int64_t(weights.size() - 2) / tensors_per_layer, width = weights[0].numel();
  STD_TORCH_CHECK(heads > 0 && width % heads == 0, "heads must divide D = ", width, ", got ", heads);
  return {int(layers), int(width), int(weights[tensors_per_layer - 3].numel()), int(heads), int(slots), norm_first};
}

void check_weights(const DecoderSizes& sizes, const std::vector<Tensor>& weights) {
  constexpr int64_t no_inputs = 0;  // of a norm
  const int64_t width = sizes.width, feed_width = sizes.feed_width;
  // Outputs and inputs of each part.
  const int64_t parts[][2] = {{width, no_inputs},  {3 * width, width}, {width, width}, {width, no_inputs},
                              {width, width},      {2 * width, width}, {width, width}, {width, no_inputs},
                              {feed_width, width}, {width, feed_width}};
  for (int64_t number = 0; number < int64_t(weights.size()); ++number) {
    const bool is_final = number >= sizes.layers * tensors_per_layer, is_bias = number % 2 == 1;
    const auto [outputs, inputs] = parts[is_final ? 0 : number % tensors_per_layer / 2];
    const std::string name = "weights[" + std::to_string(number) + "]";
    if (is_bias || inputs == no_inputs) {
      check_shape(weights[number], name.c_str(), weights[0].scalar_type(), {outputs});
    } else {
      check_shape(weights[number], name.c_str(), weights[0].scalar_type(), {outputs, inputs});
    }
  }
}

Tensor packed_of(const DecoderSizes& sizes, const std::vector<Tensor>& weights, const LaunchPlace& place) {
  return with_number_type(weights[0], "weights", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    std::vector<Tensor> kept;
    std::vector<const T*> data;
    for (const Tensor& weight : weights) {
      kept.push_back(place.contiguous(weight, "weights"));
      data.push_back(data_of<T>(kept.back()));
    }
    const Tensor packed =
        torch::stable::new_zeros(weights[0], {packed_decoder_numbers<T>(sizes)}, weights[0].scalar_type());
    launch_pack_decoder(place.stream, sizes, data.data(), mutable_data_of<T>(packed));
    return packed;
  });
}

Tensor pack_decoder(const std::vector<Tensor>& weights) {
  const DecoderSizes sizes = sizes_of(weights, 1, true, 1);
  check_weights(sizes, weights);
  return packed_of(sizes, weights, LaunchPlace(weights[0], "weights"));
}

// The tensor, contiguous and beginning at a multiple of 16 bytes.
Tensor made_aligned(const Tensor& tensor) {
  const Tensor contiguous = made_contiguous(tensor);
  const bool is_aligned = reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % 16 == 0;
  return is_aligned ? contiguous : torch::stable::clone(contiguous);
}

// A copy of a device array in host memory, which is there once the stream has been waited for.
template <typename T>
std::unique_ptr<T[]> on_host(const std::optional<Tensor>& tensor, void* stream) {
  if (!tensor) return nullptr;
  auto copied = std::make_unique_for_overwrite<T[]>(tensor->numel());
  copy(stream, tensor->const_data_ptr(), copied.get(), tensor->numel() * int64_t(sizeof(T)));
  return copied;
}

// The rules of `choices`, contiguous.
struct DeviceRules {
  std::optional<Tensor> before, allowed, group;

  DeviceRules(const Choices& choices, const LaunchPlace& place)
      : before(place.contiguous(choices.before, "before")),
        allowed(place.contiguous(choices.allowed, "allowed")),
        group(place.contiguous(choices.group, "group")) {}
  bool is_empty() const { return !before && !allowed && !group; }
};

template <typename T>
void run_under_rules(const DeviceRules& rules, const Tensor& mask, const DecodeLayout& layout, void* stream,
                     DecodeArguments<T> arguments) {
  const int64_t rows = arguments.rows, n = arguments.sizes.slots;
  const auto before = on_host<bool>(rules.before, stream), allowed = on_host<bool>(rules.allowed, stream);
  const auto group = on_host<int64_t>(rules.group, stream);
  const auto host_mask = on_host<bool>(mask, stream);
  wait_for(stream);
  const Tensor candidates = torch::stable::new_zeros(mask, {rows, n}, ScalarType::Bool);
  const auto host_candidates = std::make_unique<bool[]>(rows * n);
  const auto progress = std::make_unique<int[]>(3 * rows);
  arguments.candidates = data_of<bool>(candidates);
  arguments.most_passes = 1;
  Stop stop(is_interrupted);
  decode_under_rules(
      rows, n, host_mask.get(),
      [&](int64_t row) {
        return RowRules{before ? before.get() + row * n * n : nullptr, allowed ? allowed.get() + row * n * n : nullptr,
                        group ? group.get() + row * n : nullptr};
      },
      host_candidates.get(),
      [&](int64_t place) {
        copy(stream, host_candidates.get(), mutable_data_of<bool>(candidates), rows * n);
        arguments.is_begun = place > 0;
        launch_decode_order(stream, layout, arguments);
      },
      [&](int* picks) {
        copy(stream, arguments.progress, progress.get(), 3 * rows * int64_t(sizeof(int)));
        wait_for(stream);
        for (int64_t row = 0; row < rows; ++row) picks[row] = progress[3 * row + 2];
      },
      stop);
}

std::tuple<Tensor, Tensor, Tensor> decode_order(const Choices& choices, const std::vector<Tensor>& weights,
                                                const std::optional<Tensor>& packed, int64_t heads, bool norm_first,
                                                const Tensor& memory, const Tensor& tokens, const Tensor& start,
                                                const Tensor& places, const Tensor& head_keys, const Tensor& head_bias,
                                                const Tensor& mask) {
  const bool is_head_shared = check_decoder_inputs(memory, tokens, start, places, head_keys, head_bias, mask);
  const int64_t rows = memory.size(0), n = memory.size(1), width = memory.size(2);
  const ScalarType dtype = memory.scalar_type();
  check_choices(choices, dtype, rows, n);
  const DecoderSizes sizes = sizes_of(weights, heads, norm_first, n);
  STD_TORCH_CHECK(sizes.width == width, "memory must be (B, N, ", sizes.width, "), got D = ", width);
  const bool is_packed = packed && packed->numel() > 0;
  if (!is_packed) check_weights(sizes, weights);
  STD_TORCH_CHECK((is_packed ? *packed : weights[0]).scalar_type() == dtype, is_packed ? "packed" : "weights",
                  " must have the dtype of memory");
  STD_TORCH_CHECK(!is_packed || (packed->dim() == 1 && packed->is_contiguous()),
                  "packed must be packed weights, a contiguous vector");
  const LaunchPlace place(memory, "memory");
  const auto there = [&](const Tensor& tensor, const char* name) {
    return made_aligned(place.contiguous(tensor, name));
  };
  const auto there_if = [&](const std::optional<Tensor>& tensor, const char* name) {
    return tensor ? std::optional(there(*tensor, name)) : std::nullopt;
  };
  const Tensor memory_c = made_aligned(memory), tokens_c = there(tokens, "tokens"), start_c = there(start, "start");
  const Tensor places_c = there(places, "places"), keys_c = there(head_keys, "head_keys");
  const Tensor bias_c = there(head_bias, "head_bias"), mask_c = there(mask, "mask");
  const auto uniform = there_if(choices.uniform, "uniform");
  const auto forced = there_if(choices.forced_order, "forced_order");
  const int64_t forced_places = choices.forced(n);
  const DeviceRules rules(choices, place);
  // Under rules passes have one place each, so a draft is of no use.
  // What is forced is known beforehand, like a draft.
  auto draft = there_if(choices.draft, "draft");
  if (!draft && forced_places > 0) draft = forced;
  if (!rules.is_empty()) draft.reset();
  const auto make = [&](std::initializer_list<int64_t> shape, ScalarType type) {
    return torch::stable::new_empty(memory, shape, type);
  };
  const Tensor order = make({rows, n}, ScalarType::Long), log_probs = make({rows, n}, dtype);
  const Tensor work = make({rows, 2}, ScalarType::Long);
  if (rows == 0) return {order, log_probs, work};
  with_number_type(memory, "memory", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Tensor ready = is_packed ? there(*packed, "packed") : packed_of(sizes, weights, place);
    check_shape(ready, "packed", dtype, {packed_decoder_numbers<T>(sizes)});
    const DecodeLayout layout = layout_decode<T>(sizes, rows, bool(draft));
    const Tensor memory_keys = make({rows, n, sizes.layers, 2, width}, dtype);
    const Tensor caches = make({rows, sizes.layers, 2, n, width}, dtype);
    const Tensor scores = make({layout.score_rows, n}, dtype);
    const Tensor slots = make({rows, n}, ScalarType::Int), progress = make({rows, 3}, ScalarType::Int);
    const Tensor drafted = make({draft ? rows * n : 0}, ScalarType::Int);
    const Tensor remaining = make({rows, n}, ScalarType::Bool);
    launch_memory_keys(place.stream, sizes, data_of<T>(ready), data_of<T>(memory_c), rows * n,
                       mutable_data_of<T>(memory_keys));
    DecodeArguments<T> arguments{};
    arguments.sizes = sizes;
    arguments.rows = rows;
    arguments.packed = data_of<T>(ready);
    arguments.memory_keys = data_of<T>(memory_keys);
    arguments.caches = mutable_data_of<T>(caches);
    arguments.tokens = data_of<T>(tokens_c);
    arguments.start = data_of<T>(start_c);
    arguments.places = data_of<T>(places_c);
    arguments.head_keys = data_of<T>(keys_c);
    arguments.head_bias = data_of<T>(bias_c);
    arguments.is_head_shared = is_head_shared;
    arguments.mask = data_of<bool>(mask_c);
    arguments.uniform = uniform ? data_of<T>(*uniform) : nullptr;
    arguments.forced = forced ? data_of<int64_t>(*forced) : nullptr;
    arguments.forced_places = int(forced_places);
    arguments.temperature = T(choices.temperature);
    arguments.draft = draft ? data_of<int64_t>(*draft) : nullptr;
    arguments.most_passes = INT32_MAX;
    arguments.scores = mutable_data_of<T>(scores);
    arguments.real_slots = mutable_data_of<int>(slots);
    arguments.drafted = mutable_data_of<int>(drafted);
    arguments.remaining = mutable_data_of<bool>(remaining);
    arguments.progress = mutable_data_of<int>(progress);
    arguments.order = mutable_data_of<int64_t>(order);
    arguments.log_probs = mutable_data_of<T>(log_probs);
    arguments.work = mutable_data_of<int64_t>(work);
    if (rules.is_empty()) {
      launch_decode_order(place.stream, layout, arguments);
    } else {
      run_under_rules(rules, mask_c, layout, place.stream, arguments);
    }
  });
  return {order, log_probs, work};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(softrank_ext, CUDA, m) {
  m.impl("pack_decoder", TORCH_BOX(&pack_decoder));
  m.impl("decode_order", TORCH_BOX(&WithChoices<&decode_order>::call));
}

}  // namespace softrank

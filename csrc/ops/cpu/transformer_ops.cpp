// The encoder, the projection and the packing of weights on CPU tensors: rows, or tiles of them, in parallel.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "packed.h"

namespace softrank {
namespace {

// The list's sizes: width of the model, and of the feed-forward, by the bias of feed_in.
TransformerShape listed_shape(WeightKind kind, const std::vector<Tensor>& weights) {
  const int64_t per_layer = tensors_per_layer(kind);
  STD_TORCH_CHECK(int64_t(weights.size()) > per_layer && (weights.size() - 2) % per_layer == 0, "weights must be ",
                  per_layer, " tensors per layer and 2 of the final norm, got ", weights.size());
  return {kind, int64_t(weights.size() - 2) / per_layer, weights[0].numel(), weights[per_layer - 3].numel(), 1, 1,
          true};
}

// The weights' data, kept alive and contiguous. A tensor of another size or dtype would be read out of bounds.
template <typename T>
struct WeightData {
  std::vector<Tensor> tensors;
  std::vector<const T*> data;

  WeightData(const TransformerShape& shape, const std::vector<Tensor>& weights) {
    const auto add = [&](const std::string& name, const char* tensor, std::initializer_list<int64_t> wanted) {
      const Tensor& weight = weights[tensors.size()];
      check_shape(weight, ("weights of " + name + "_" + tensor).c_str(), weights[0].scalar_type(), wanted);
      tensors.push_back(made_contiguous(weight));
      data.push_back(data_of<T>(tensors.back()));
    };
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      for (int part = 0; part < all_parts; ++part) {
        if (!has_part(shape.kind, part)) continue;
        const PartInfo& info = part_infos[part];
        const int64_t outputs = size_of(shape, info.outputs), inputs = size_of(shape, info.inputs);
        if (info.inputs == Size::none) {
          add(info.name, "weight", {outputs});
        } else {
          add(info.name, "weight", {outputs, inputs});
        }
        add(info.name, "bias", {outputs});
      }
    }
    add("final_norm", "weight", {shape.model_width});
    add("final_norm", "bias", {shape.model_width});
  }
};

// Packs layer by layer in parallel.
Tensor pack_transformer(WeightKind kind, const std::vector<Tensor>& weights) {
  const TransformerShape shape = listed_shape(kind, weights);
  return with_number_type(weights[0], "weights", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const WeightData<T> list(shape, weights);
    const Tensor packed = new_packed<T>(weights[0], kind, shape.layers, shape.model_width, shape.feed_width,
                                        packed_layers_numbers<T>(shape));
    T* data = mutable_data_of<T>(packed) + panel_width<T>;
    torch::stable::parallel_for(0, shape.layers, 1, [&](int64_t first, int64_t end) {
      transformer_kernels<T>().pack_layers(shape, list.data.data(), first, end, data);
    });
    seal<T>(packed);
    return packed;
  });
}

Tensor pack_encoder(const std::vector<Tensor>& weights) { return pack_transformer(WeightKind::encoder, weights); }

Tensor pack_decoder(const std::vector<Tensor>& weights) { return pack_transformer(WeightKind::decoder, weights); }

Tensor pack_projection(const Tensor& weight) {
  STD_TORCH_CHECK(weight.dim() == 2, "weight must be (outputs, D), got ", weight.dim(), " dimensions");
  const Tensor weight_c = made_contiguous(weight);
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  return with_number_type(weight, "weight", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Tensor packed =
        new_packed<T>(weight, WeightKind::projection, 1, inputs, outputs, packed_matrix_numbers<T>(outputs, inputs));
    transformer_kernels<T>().pack_projection(data_of<T>(weight_c), outputs, inputs,
                                             mutable_data_of<T>(packed) + panel_width<T>);
    seal<T>(packed);
    return packed;
  });
}

std::string layer_weight_names(const std::string& kind) {
  STD_TORCH_CHECK(kind == "encoder" || kind == "decoder", "kind must be encoder or decoder, got ", kind);
  std::string names;
  for (int part = 0; part < all_parts; ++part) {
    if (!has_part(kind == "encoder" ? WeightKind::encoder : WeightKind::decoder, part)) continue;
    for (const char* tensor : {"_weight", "_bias"}) {
      if (!names.empty()) names.append(",");
      names.append(part_infos[part].name).append(tensor);
    }
  }
  return names;
}

void run_parts(int64_t parts, void (*body)(void* context, int64_t part), void* context) {
  torch::stable::parallel_for(0, parts, 1, [=](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) body(context, part);
  });
}

}  // namespace

TransformerShape shape_of(WeightKind kind, const std::vector<Tensor>& weights, const std::optional<Tensor>& packed,
                          int64_t heads, bool norm_first, int64_t slots, const Tensor& like) {
  const int64_t width = like.size(like.dim() - 1);
  TransformerShape shape{};
  if (!packed) {
    shape = listed_shape(kind, weights);
    STD_TORCH_CHECK(weights[0].scalar_type() == like.scalar_type(), "weights must have the dtype of what they work on");
  } else {
    const PackedHeader header = checked_header(*packed, kind);
    shape = {kind, header.layers, header.width, header.feed_width, 1, 1, true};
    const int64_t numbers = with_number_type(*packed, "packed", [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      return panel_width<T> + packed_layers_numbers<T>(shape);
    });
    STD_TORCH_CHECK(header.numbers == numbers, "packed must hold ", numbers, " numbers for its sizes, got ",
                    header.numbers);
    STD_TORCH_CHECK(packed->scalar_type() == like.scalar_type(), "packed must have the dtype of what it works on");
    if (!weights.empty()) {
      const TransformerShape listed = listed_shape(kind, weights);
      STD_TORCH_CHECK(listed.layers == shape.layers && listed.model_width == shape.model_width &&
                          listed.feed_width == shape.feed_width,
                      "packed must be made of the weights in the list: ", shape.layers, " layers of width ",
                      shape.model_width, " and ", shape.feed_width, ", got a list of ", listed.layers, ", ",
                      listed.model_width, " and ", listed.feed_width);
    }
  }
  STD_TORCH_CHECK(width > 0 && shape.feed_width > 0, "weights must have widths of at least 1");
  STD_TORCH_CHECK(shape.model_width == width, "weights of ", name_of(kind),
                  " must have the width of what they work on, ", width, ", got ", shape.model_width);
  STD_TORCH_CHECK(heads > 0 && width % heads == 0, "heads must divide D = ", width, ", got ", heads);
  shape.heads = heads;
  shape.slots = slots;
  shape.norm_first = norm_first;
  return shape;
}

Tensor packed_or_new(const TransformerShape& shape, const std::vector<Tensor>& weights,
                     const std::optional<Tensor>& packed) {
  return packed ? *packed : pack_transformer(shape.kind, weights);
}

Workers workers_for(int64_t rows) {
  return {rows == 1 ? std::min<int64_t>(torch::stable::get_num_threads(), most_parts) : 1, run_parts};
}

Tensor project(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& packed) {
  constexpr int64_t fewest_rows = 64;  // for a thread of their own
  check_dimensions(x, "x", 3);
  check_dimensions(weight, "weight", 2);
  STD_TORCH_CHECK(weight.scalar_type() == x.scalar_type(), "weight must have the dtype of x");
  const int64_t outputs = weight.size(0), inputs = weight.size(1), rows = x.size(0) * x.size(1);
  const Tensor ready = packed ? *packed : pack_projection(weight);
  const PackedHeader header = checked_header(ready, WeightKind::projection);
  STD_TORCH_CHECK(header.width == inputs && header.feed_width == outputs && ready.scalar_type() == x.scalar_type() &&
                      x.size(2) == inputs,
                  "packed must be what pack_projection returned for this weight, (", outputs, ", ", inputs, "), got (",
                  header.feed_width, ", ", header.width, ")");
  const Tensor x_c = made_contiguous(x);
  const Tensor out = torch::stable::new_empty(x, {x.size(0), x.size(1), outputs}, x.scalar_type());
  with_number_type(x, "x", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    STD_TORCH_CHECK(header.numbers == panel_width<T> + packed_matrix_numbers<T>(outputs, inputs),
                    "packed must be whole, got ", header.numbers, " numbers");
    torch::stable::parallel_for(0, rows, fewest_rows, [&](int64_t begin, int64_t end) {
      const auto product = std::make_unique_for_overwrite<T[]>(most_tokens * padded<T>(outputs));
      transformer_kernels<T>().project(packed_data<T>(ready), end - begin, data_of<T>(x_c) + begin * inputs, outputs,
                                       inputs, mutable_data_of<T>(out) + begin * outputs, product.get());
    });
  });
  return out;
}

Tensor encode(const std::vector<Tensor>& weights, const std::optional<Tensor>& packed, int64_t heads, bool norm_first,
              const Tensor& x, const Tensor& mask) {
  check_dimensions(x, "x", 3);
  const int64_t rows = x.size(0), n = x.size(1), width = x.size(2);
  const TransformerShape shape = shape_of(WeightKind::encoder, weights, packed, heads, norm_first, n, x);
  const Tensor ready = packed_or_new(shape, weights, packed);
  check_shape(mask, "mask", ScalarType::Bool, {rows, n});
  const Tensor x_c = made_contiguous(x), mask_c = made_contiguous(mask);
  const Tensor memory = torch::stable::empty_like(x_c);
  with_number_type(x, "x", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const TransformerKernels<T>& kernels = transformer_kernels<T>();
    const int64_t threads = torch::stable::get_num_threads();
    const Workers workers = workers_for(rows);
    const auto encode_range = [&](int64_t begin, int64_t end) {
      const auto scratch = std::make_unique_for_overwrite<T[]>(kernels.encoder_scratch_numbers(shape, workers.parts));
      kernels.encode_rows(shape, packed_data<T>(ready), end - begin, data_of<T>(x_c) + begin * n * width,
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

STABLE_TORCH_LIBRARY_IMPL(softrank_ext, CPU, m) {
  m.impl("pack_encoder", TORCH_BOX(&pack_encoder));
  m.impl("pack_decoder", TORCH_BOX(&pack_decoder));
  m.impl("pack_projection", TORCH_BOX(&pack_projection));
  m.impl("project", TORCH_BOX(&project));
  m.impl("encode", TORCH_BOX(&encode));
}

// Without a tensor argument there is no key to choose by: this one is called directly.
STABLE_TORCH_LIBRARY_IMPL(softrank_ext, BackendSelect, m) {
  m.impl("layer_weight_names", TORCH_BOX(&layer_weight_names));
}

}  // namespace softrank

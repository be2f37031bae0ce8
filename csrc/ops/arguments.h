// What the arguments of ops must be on every device, and the choices of a decoder, as an op gets them. Numbers are
// looked at where they are on the host.
#pragma once

#include <cmath>
#include <optional>

#include "tensors.h"

namespace softrank {

inline void check_if_given(const std::optional<Tensor>& tensor, const char* name, ScalarType dtype,
                           std::initializer_list<int64_t> shape) {
  if (tensor) check_shape(*tensor, name, dtype, shape);
}

inline void check_chamber(const Tensor& soft_ranks, const std::optional<Tensor>& mask) {
  STD_TORCH_CHECK(soft_ranks.dim() == 2, "soft_ranks must be (B, N), got ", soft_ranks.dim(), " dimensions");
  check_if_given(mask, "mask", ScalarType::Bool, {soft_ranks.size(0), soft_ranks.size(1)});
}

inline void check_pick(const Tensor& scores, const Tensor& remaining, const std::optional<Tensor>& uniform) {
  STD_TORCH_CHECK(scores.dim() == 2, "scores must be (B, N), got ", scores.dim(), " dimensions");
  check_shape(remaining, "remaining", ScalarType::Bool, {scores.size(0), scores.size(1)});
  check_if_given(uniform, "uniform", scores.scalar_type(), {scores.size(0)});
}

inline void check_random(const Tensor& samples, int64_t step, int64_t stream, int64_t count, ScalarType dtype) {
  STD_TORCH_CHECK(samples.dim() == 1, "samples must be (B,), got ", samples.dim(), " dimensions");
  check_shape(samples, "samples", ScalarType::Long, {samples.size(0)});
  STD_TORCH_CHECK(count >= 0 && count < int64_t(1) << 31, "count must be from 0 to 2^31 - 1, got ", count);
  STD_TORCH_CHECK(step >= 0 && step < int64_t(1) << 24, "step must be from 0 to 2^24 - 1, got ", step);
  STD_TORCH_CHECK(stream >= 0 && stream < 256, "stream must be from 0 to 255, got ", stream);
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::Double, "dtype must be float32 or float64");
}

// Of `memory` (B, N, D). Returns whether all rows share one head.
inline bool check_decoder_inputs(const Tensor& memory, const Tensor& tokens, const Tensor& start, const Tensor& places,
                                 const Tensor& head_keys, const Tensor& head_bias, const Tensor& mask) {
  check_dimensions(memory, "memory", 3);
  const int64_t rows = memory.size(0), n = memory.size(1), width = memory.size(2);
  const ScalarType dtype = memory.scalar_type();
  const bool is_head_shared = head_keys.dim() > 0 && head_keys.size(0) == 1;
  check_shape(tokens, "tokens", dtype, {rows, n, width});
  check_shape(start, "start", dtype, {rows, width});
  check_shape(places, "places", dtype, {n, width});
  check_shape(head_keys, "head_keys", dtype, {is_head_shared ? 1 : rows, n, width});
  check_shape(head_bias, "head_bias", dtype, {is_head_shared ? 1 : rows, n});
  check_shape(mask, "mask", ScalarType::Bool, {rows, n});
  return is_head_shared;
}

// What picks are made by: the fields of `ops.Choices`.
struct Choices {
  const std::optional<Tensor>&uniform, &forced_order;
  std::optional<int64_t> forced_places;
  double temperature;
  const std::optional<Tensor>&draft, &before, &allowed, &group;

  // Leading places that are forced, of n.
  int64_t forced(int64_t n) const { return forced_order ? forced_places.value_or(n) : 0; }
};

// Of a batch of `rows` rows of n slots, with scores of `dtype`.
inline void check_choices(const Choices& choices, ScalarType dtype, int64_t rows, int64_t n) {
  check_if_given(choices.uniform, "uniform", dtype, {rows, n});
  check_if_given(choices.forced_order, "forced_order", ScalarType::Long, {rows, n});
  check_if_given(choices.draft, "draft", ScalarType::Long, {rows, n});
  check_if_given(choices.before, "before", ScalarType::Bool, {rows, n, n});
  check_if_given(choices.allowed, "allowed", ScalarType::Bool, {rows, n, n});
  check_if_given(choices.group, "group", ScalarType::Long, {rows, n});
  const bool is_normal =
      dtype == ScalarType::Float ? std::isnormal(float(choices.temperature)) : std::isnormal(choices.temperature);
  STD_TORCH_CHECK(is_normal && choices.temperature > 0,
                  "temperature must be positive and finite in the dtype of the scores, got ", choices.temperature);
  STD_TORCH_CHECK(choices.forced(n) >= 0 && choices.forced(n) <= n, "forced_places must be from 0 to ", n, ", got ",
                  choices.forced(n));
}

// An op whose last arguments are the choices: `WithChoices<kernel>::call` takes them one by one, as the dispatcher
// gives them, and calls kernel(choices, arguments before them...).
template <auto kernel>
struct WithChoices;

template <typename Result, typename... Arguments, Result (*kernel)(const Choices&, Arguments...)>
struct WithChoices<kernel> {
  static Result call(Arguments... arguments, const std::optional<Tensor>& uniform,
                     const std::optional<Tensor>& forced_order, std::optional<int64_t> forced_places,
                     double temperature, const std::optional<Tensor>& draft, const std::optional<Tensor>& before,
                     const std::optional<Tensor>& allowed, const std::optional<Tensor>& group) {
    return kernel({uniform, forced_order, forced_places, temperature, draft, before, allowed, group}, arguments...);
  }
};

}  // namespace softrank

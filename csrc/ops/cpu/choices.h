// What picks are made by: the fields of `ops.Choices`, as an op gets them and as a kernel reads them.
#pragma once

#include <cmath>
#include <optional>

#include "constraints.h"

namespace softrank {

struct Choices {
  const std::optional<Tensor>&uniform, &forced_order;
  std::optional<int64_t> forced_places;
  double temperature;
  const std::optional<Tensor>&draft, &before, &allowed, &group;
};

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

// The choices of a batch of `rows` rows of n slots, checked: a kernel reads raw pointers, so an argument of another
// dtype or size would be read out of bounds. Pointers are null where there is nothing.
template <typename T>
struct BatchChoices {
  OptionalData<T> uniform;
  OptionalData<int64_t> forced, draft;
  int64_t forced_places;  // leading places that are forced
  T temperature;
  BatchRules rules;

  BatchChoices(const Choices& choices, int64_t rows, int64_t n)
      : uniform(checked(choices.uniform, "uniform", float_type, rows * n)),
        forced(checked(choices.forced_order, "forced_order", ScalarType::Long, rows * n)),
        draft(checked(choices.draft, "draft", ScalarType::Long, rows * n)),
        forced_places(choices.forced_order ? choices.forced_places.value_or(n) : 0),
        temperature(T(choices.temperature)),
        rules(checked(choices.before, "before", ScalarType::Bool, rows * n * n),
              checked(choices.allowed, "allowed", ScalarType::Bool, rows * n * n),
              checked(choices.group, "group", ScalarType::Long, rows * n), n) {
    STD_TORCH_CHECK(std::isfinite(choices.temperature) && choices.temperature > 0,
                    "temperature must be positive and finite, got ", choices.temperature);
    STD_TORCH_CHECK(forced_places >= 0 && forced_places <= n, "forced_places must be from 0 to ", n, ", got ",
                    forced_places);
    check_slots(forced, "forced_order", rows, n);
    check_slots(draft, "draft", rows, n);
  }

 private:
  static constexpr ScalarType float_type = sizeof(T) == 4 ? ScalarType::Float : ScalarType::Double;

  static const std::optional<Tensor>& checked(const std::optional<Tensor>& tensor, const char* name, ScalarType dtype,
                                              int64_t size) {
    if (tensor) check_argument(*tensor, name, dtype, size);
    return tensor;
  }

  static void check_slots(const OptionalData<int64_t>& slots, const char* name, int64_t rows, int64_t n) {
    for (int64_t at = 0; slots.data != nullptr && at < rows * n; ++at) {
      STD_TORCH_CHECK(slots.data[at] >= 0 && slots.data[at] < n, name, " must hold slots from 0 to ", n - 1, ", got ",
                      slots.data[at]);
    }
  }
};

}  // namespace softrank

// What picks are made by: the fields of `ops.Choices`, as an op gets them and as a kernel reads them.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

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
// dtype or size would be read out of bounds, and so would an order that names a slot twice. is_real (rows, n).
// Pointers are null where there is nothing.
template <typename T>
struct BatchChoices {
  OptionalData<T> uniform;
  OptionalData<int64_t> forced, draft;
  int64_t forced_places;  // leading places that are forced
  T temperature;
  BatchRules rules;

  BatchChoices(const Choices& choices, const bool* is_real, int64_t rows, int64_t n)
      : uniform(checked(choices.uniform, "uniform", float_type, {rows, n})),
        forced(checked(choices.forced_order, "forced_order", ScalarType::Long, {rows, n})),
        draft(checked(choices.draft, "draft", ScalarType::Long, {rows, n})),
        forced_places(choices.forced_order ? choices.forced_places.value_or(n) : 0),
        temperature(T(choices.temperature)),
        rules(checked(choices.before, "before", ScalarType::Bool, {rows, n, n}),
              checked(choices.allowed, "allowed", ScalarType::Bool, {rows, n, n}),
              checked(choices.group, "group", ScalarType::Long, {rows, n}), n) {
    STD_TORCH_CHECK(std::isnormal(temperature) && temperature > 0,
                    "temperature must be positive and finite in the dtype of the scores, got ", choices.temperature);
    STD_TORCH_CHECK(forced_places >= 0 && forced_places <= n, "forced_places must be from 0 to ", n, ", got ",
                    forced_places);
    check_slots(forced, "forced_order", is_real, rows, n, forced_places);
    check_slots(draft, "draft", is_real, rows, n, n);
    for (int64_t at = 0; uniform.data != nullptr && at < rows * n; ++at) {
      STD_TORCH_CHECK(uniform.data[at] >= 0 && uniform.data[at] <= 1, "uniform must be from 0 to 1, got ",
                      uniform.data[at]);
    }
  }

 private:
  static constexpr ScalarType float_type = sizeof(T) == 4 ? ScalarType::Float : ScalarType::Double;

  static const std::optional<Tensor>& checked(const std::optional<Tensor>& tensor, const char* name, ScalarType dtype,
                                              std::initializer_list<int64_t> shape) {
    if (tensor) check_shape(*tensor, name, dtype, shape);
    return tensor;
  }

  // The leading places of each row, as many as are read: real slots, each once.
  static void check_slots(const OptionalData<int64_t>& slots, const char* name, const bool* is_real, int64_t rows,
                          int64_t n, int64_t places) {
    if (slots.data == nullptr) return;
    std::vector<char> is_left(n);
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(is_real + row * n, n, is_left.begin());
      const int64_t read = std::min<int64_t>(places, std::count(is_left.begin(), is_left.end(), 1));
      for (int64_t place = 0; place < n; ++place) {
        const int64_t slot = slots.data[row * n + place];
        STD_TORCH_CHECK(slot >= 0 && slot < n, name, " must hold slots from 0 to ", n - 1, ", got ", slot);
        STD_TORCH_CHECK(place >= read || is_left[slot], name, " must list each real slot once before padding, row ",
                        row, " has ", slot, " at place ", place);
        is_left[slot] = 0;
      }
    }
  }
};

}  // namespace softrank

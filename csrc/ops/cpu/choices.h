// The choices of a decoder as a kernel reads them.
#pragma once

#include <algorithm>
#include <vector>

#include "../arguments.h"
#include "constraints.h"

namespace softrank {

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
      : uniform(choices.uniform),
        forced(choices.forced_order),
        draft(choices.draft),
        forced_places(choices.forced(n)),
        temperature(T(choices.temperature)),
        rules(choices.before, choices.allowed, choices.group, n) {
    check_choices(choices, sizeof(T) == 4 ? ScalarType::Float : ScalarType::Double, rows, n);
    check_slots(forced, "forced_order", is_real, rows, n, forced_places);
    check_slots(draft, "draft", is_real, rows, n, n);
    for (int64_t at = 0; uniform.data != nullptr && at < rows * n; ++at) {
      STD_TORCH_CHECK(uniform.data[at] >= 0 && uniform.data[at] <= 1, "uniform must be from 0 to 1, got ",
                      uniform.data[at]);
    }
  }

 private:
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

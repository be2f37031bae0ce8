// The constraints of a batch, as tensors, handed to `RowConstraints` row by row.
#pragma once

#include <optional>

#include "../../kernels/constraints.h"
#include "../tensors.h"

namespace softrank {

struct BatchRules {
  OptionalData<bool> before, allowed;
  OptionalData<int64_t> group;
  int64_t n;

  BatchRules(const std::optional<Tensor>& before, const std::optional<Tensor>& allowed,
             const std::optional<Tensor>& group, int64_t n)
      : before(before), allowed(allowed), group(group), n(n) {}
  bool is_empty() const { return before.data == nullptr && allowed.data == nullptr && group.data == nullptr; }
  RowRules row(int64_t row) const { return {before.at(row * n * n), allowed.at(row * n * n), group.at(row * n)}; }
};

}  // namespace softrank

// The CPU ops on tensors: rows in parallel, each by a kernel of the table. LibTorch stable ABI only.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../interruptible.h"
#include "choices.h"
#include "cpu_kernels.h"

namespace softrank {
namespace {

// Rows per task such that a task is worth starting a thread for.
int64_t rows_per_task(int64_t work_per_row) { return 1 + 16384 / (work_per_row + 1); }

Tensor reflect(const Tensor& x) {
  const Tensor input = made_contiguous(x);
  const Tensor out = torch::stable::empty_like(input);
  with_number_type(input, "x", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = data_of<T>(input);
    T* to = mutable_data_of<T>(out);
    const auto kernel = row_kernels<T>().reflect;
    torch::stable::parallel_for(0, input.numel(), 32768,
                                [=](int64_t begin, int64_t end) { kernel(from + begin, to + begin, end - begin); });
  });
  return out;
}

std::tuple<Tensor, Tensor> decode_chamber(const Tensor& soft_ranks, const std::optional<Tensor>& mask) {
  check_chamber(soft_ranks, mask);
  const int64_t rows = soft_ranks.size(0), n = soft_ranks.size(1);
  const Tensor values = made_contiguous(soft_ranks);
  const std::optional<Tensor> real = mask ? std::optional(made_contiguous(*mask)) : std::nullopt;
  const Tensor order = torch::stable::new_empty(soft_ranks, {rows, n}, ScalarType::Long);
  const Tensor ranks = torch::stable::new_empty(soft_ranks, {rows, n}, ScalarType::Long);
  with_number_type(soft_ranks, "soft_ranks", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = data_of<T>(values);
    const bool* is_real = real ? data_of<bool>(*real) : nullptr;
    int64_t* order_data = mutable_data_of<int64_t>(order);
    int64_t* ranks_data = mutable_data_of<int64_t>(ranks);
    const auto kernel = row_kernels<T>().decode_chamber;
    torch::stable::parallel_for(0, rows, rows_per_task(16 * n), [=](int64_t begin, int64_t end) {
      const auto scratch = std::make_unique_for_overwrite<char[]>(chamber_scratch_bytes(n));
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * n;
        kernel(from + at, is_real == nullptr ? nullptr : is_real + at, n, order_data + at, ranks_data + at,
               scratch.get());
      }
    });
  });
  return {order, ranks};
}

std::tuple<Tensor, Tensor, Tensor> read_order(const Tensor& z, const std::optional<Tensor>& mask) {
  const Tensor soft_ranks = reflect(z);
  const auto [order, ranks] = decode_chamber(soft_ranks, mask);
  return {soft_ranks, order, ranks};
}

// Keeps the lowest row reported, so that the message does not depend on threads.
void keep_lowest(std::atomic<int64_t>& lowest, int64_t row) {
  int64_t seen = lowest;
  while (row < seen && !lowest.compare_exchange_weak(seen, row)) {
  }
}

// Slots become items, and their places soft ranks on the grid; counterpart of read_order, in one op for the same reason
// as predict_order.
std::tuple<Tensor, Tensor, Tensor> lift_order(const Tensor& order, const Tensor& slots,
                                              const std::optional<Tensor>& mask, ScalarType dtype) {
  STD_TORCH_CHECK(order.dim() == 2, "order must be (B, N), got ", order.dim(), " dimensions");
  const int64_t rows = order.size(0), n = order.size(1);
  check_shape(order, "order", ScalarType::Long, {rows, n});
  check_shape(slots, "slots", ScalarType::Long, {rows, n});
  check_if_given(mask, "mask", ScalarType::Bool, {rows, n});
  const Tensor items_of_slots = made_contiguous(order), chosen = made_contiguous(slots);
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::Double, "dtype must be float32 or float64");
  const OptionalData<bool> real(mask);
  const Tensor items = torch::stable::new_empty(order, {rows, n}), ranks = torch::stable::new_empty(order, {rows, n});
  const Tensor soft_ranks = torch::stable::new_empty(order, {rows, n}, dtype);
  std::atomic<int64_t> wrong_row{rows};
  with_number_type(soft_ranks, "dtype", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t *order_data = data_of<int64_t>(items_of_slots), *slot_data = data_of<int64_t>(chosen);
    int64_t *item_data = mutable_data_of<int64_t>(items), *rank_data = mutable_data_of<int64_t>(ranks);
    T* soft_data = mutable_data_of<T>(soft_ranks);
    torch::stable::parallel_for(0, rows, rows_per_task(4 * n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t first = row * n;
        const bool* is_real = real.at(first);
        const int64_t size = is_real == nullptr ? n : std::count(is_real, is_real + n, true);
        const T steps = T(std::max<int64_t>(size, 2) - 1);
        std::fill_n(rank_data + first, n, -1);
        for (int64_t place = 0; place < n; ++place) {
          const int64_t slot = slot_data[first + place];
          const int64_t item = slot < 0 || slot >= n ? -1 : order_data[first + slot];
          if (item < 0 || item >= n || rank_data[first + item] >= 0) {
            keep_lowest(wrong_row, row);
            break;
          }
          item_data[first + place] = item;
          rank_data[first + item] = place;
          soft_data[first + item] = is_real == nullptr || is_real[item] ? T(place) / steps : T(0);
        }
      }
    });
  });
  STD_TORCH_CHECK(wrong_row == rows, "order and slots must hold each of 0 to ", n - 1, " once per row, row ",
                  wrong_row.load(), " holds something else");
  return {items, ranks, soft_ranks};
}

std::tuple<Tensor, Tensor> pick(const Tensor& scores, const Tensor& remaining, const std::optional<Tensor>& uniform) {
  check_pick(scores, remaining, uniform);
  const int64_t rows = scores.size(0), n = scores.size(1);
  const Tensor values = made_contiguous(scores);
  const Tensor allowed = made_contiguous(remaining);
  const std::optional<Tensor> draws = uniform ? std::optional(made_contiguous(*uniform)) : std::nullopt;
  const Tensor choice = torch::stable::new_empty(scores, {rows}, ScalarType::Long);
  const Tensor log_prob = torch::stable::new_empty(scores, {rows}, scores.scalar_type());
  std::atomic<int64_t> empty_row{rows}, nan_row{rows};
  with_number_type(scores, "scores", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* score_data = data_of<T>(values);
    const bool* allowed_data = data_of<bool>(allowed);
    const T* draw_data = draws ? data_of<T>(*draws) : nullptr;
    int64_t* choice_data = mutable_data_of<int64_t>(choice);
    T* log_prob_data = mutable_data_of<T>(log_prob);
    for (int64_t row = 0; draw_data != nullptr && row < rows; ++row) {
      STD_TORCH_CHECK(draw_data[row] >= 0 && draw_data[row] <= 1, "uniform must be from 0 to 1, got ", draw_data[row],
                      " in row ", row);
    }
    const auto kernel = row_kernels<T>().pick;
    torch::stable::parallel_for(0, rows, rows_per_task(8 * n), [&](int64_t begin, int64_t end) {
      std::vector<T> weights(pick_scratch_numbers(n));
      for (int64_t row = begin; row < end; ++row) {
        const PickFailure failure =
            kernel(score_data + row * n, allowed_data + row * n, draw_data == nullptr ? nullptr : draw_data + row,
                   nullptr, n, choice_data + row, log_prob_data + row, weights.data());
        if (failure == PickFailure::nothing_remains) keep_lowest(empty_row, row);
        if (failure == PickFailure::score_is_nan) keep_lowest(nan_row, row);
      }
    });
  });
  STD_TORCH_CHECK(empty_row == rows, "remaining must hold at least one item per row, got none in row ",
                  empty_row.load());
  STD_TORCH_CHECK(nan_row == rows, "scores must not be NaN where remaining is True, got NaN in row ", nan_row.load());
  return {choice, log_prob};
}

// Picks place after place from scores (B, place, slot) that do not depend on earlier picks.
std::tuple<Tensor, Tensor> decode_scores(const Choices& choices, const Tensor& scores, const Tensor& mask) {
  STD_TORCH_CHECK(scores.dim() == 3, "scores must be (B, N, N), got ", scores.dim(), " dimensions");
  const int64_t rows = scores.size(0), n = scores.size(1);
  STD_TORCH_CHECK(scores.size(2) == n, "scores must be (B, N, N), place by slot, got ", n, " by ", scores.size(2));
  check_shape(mask, "mask", ScalarType::Bool, {rows, n});
  const Tensor values = made_contiguous(scores), real = made_contiguous(mask);
  const Tensor order = torch::stable::new_empty(scores, {rows, n}, ScalarType::Long);
  const Tensor log_probs = torch::stable::new_zeros(scores, {rows, n}, scores.scalar_type());
  std::atomic<int64_t> nan_row{-1}, empty_row{-1};
  std::atomic<bool> is_too_hard{false};
  Stop stop(is_interrupted);
  with_number_type(scores, "scores", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const BatchChoices<T> given(choices, data_of<bool>(real), rows, n);
    const BatchRules& rules = given.rules;
    const auto kernel = row_kernels<T>().pick;
    parallel_rows(rows, rows_per_task(8 * n * n), stop, [&](int64_t begin, int64_t end) {
      std::vector<T> weights(pick_scratch_numbers(n)), place_scores(n);
      const auto remaining = std::make_unique_for_overwrite<bool[]>(n), allowed_now = std::make_unique<bool[]>(n);
      RowConstraints constraints;
      for (int64_t row = begin; row < end && !stop(); ++row) {
        const bool* is_real = data_of<bool>(real) + row * n;
        int64_t* row_order = mutable_data_of<int64_t>(order) + row * n;
        int64_t count = 0;
        for (int64_t slot = 0; slot < n; ++slot) count += remaining[slot] = is_real[slot];
        std::vector<int64_t> number(n);  // of a real slot among the real ones
        if (!rules.is_empty()) {
          constraints.begin(rules.row(row), is_real, n, stop);
          for (int64_t slot = 1; slot < n; ++slot) number[slot] = number[slot - 1] + is_real[slot - 1];
        }
        for (int64_t place = 0; place < count; ++place) {
          const bool* candidates = remaining.get();
          if (!rules.is_empty()) {
            const bool* next = constraints.next();
            if (next == nullptr) {
              if (!stop()) is_too_hard = true;
              stop.stop();  // for the other rows too
              break;
            }
            for (int64_t slot = 0; slot < n; ++slot) allowed_now[slot] = is_real[slot] && next[number[slot]];
            candidates = allowed_now.get();
          }
          const T* from = data_of<T>(values) + (row * n + place) * n;
          for (int64_t slot = 0; slot < n; ++slot) place_scores[slot] = from[slot] / given.temperature;
          const PickFailure failure =
              kernel(place_scores.data(), candidates, given.uniform.at(row * n + place),
                     place < given.forced_places ? given.forced.at(row * n + place) : nullptr, n, row_order + place,
                     mutable_data_of<T>(log_probs) + row * n + place, weights.data());
          if (failure != PickFailure::none) {
            (failure == PickFailure::nothing_remains ? empty_row : nan_row) = row;
            break;
          }
          remaining[row_order[place]] = false;
          if (!rules.is_empty()) constraints.place(number[row_order[place]]);
        }
        for (int64_t slot = 0, place = count; slot < n; ++slot) {
          if (!is_real[slot]) row_order[place++] = slot;
        }
      }
    });
  });
  STD_TORCH_CHECK(!is_too_hard, RowConstraints::too_hard);
  STD_TORCH_CHECK(!stop(), Stop::sentence);
  STD_TORCH_CHECK(empty_row < 0, "constraints must leave an order, they leave none in row ", empty_row.load());
  STD_TORCH_CHECK(nan_row < 0, "scores must not be NaN for a real slot, got NaN in row ", nan_row.load());
  return {order, log_probs};
}

// Walks along a prefix and says what may come next after each part of it.
Tensor allowed_picks(const Tensor& prefix, const Tensor& mask, const std::optional<Tensor>& before,
                     const std::optional<Tensor>& allowed, const std::optional<Tensor>& group) {
  check_dimensions(mask, "mask", 2);
  check_dimensions(prefix, "prefix", 2);
  const int64_t rows = mask.size(0), n = mask.size(1), picks = prefix.size(1);
  check_shape(mask, "mask", ScalarType::Bool, {rows, n});
  check_shape(prefix, "prefix", ScalarType::Long, {rows, picks});
  check_if_given(before, "before", ScalarType::Bool, {rows, n, n});
  check_if_given(allowed, "allowed", ScalarType::Bool, {rows, n, n});
  check_if_given(group, "group", ScalarType::Long, {rows, n});
  const Tensor prefix_c = made_contiguous(prefix), real = made_contiguous(mask);
  const Tensor out = torch::stable::new_zeros(mask, {rows, picks + 1, n}, ScalarType::Bool);
  for (int64_t at = 0; at < rows * picks; ++at) {
    const int64_t slot = data_of<int64_t>(prefix_c)[at];
    STD_TORCH_CHECK(slot >= 0 && slot < n, "prefix must hold slots from 0 to ", n - 1, ", got ", slot);
  }
  const BatchRules rules(before, allowed, group, n);
  std::atomic<bool> is_too_hard{false};
  Stop stop(is_interrupted);
  parallel_rows(rows, rows_per_task(n * (picks + 1)), stop, [&](int64_t begin, int64_t end) {
    RowConstraints constraints;
    for (int64_t row = begin; row < end && !stop(); ++row) {
      const bool* is_real = data_of<bool>(real) + row * n;
      constraints.begin(rules.row(row), is_real, n, stop);
      for (int64_t step = 0; step <= picks; ++step) {
        const bool* next = constraints.next();
        if (next == nullptr) {
          if (!stop()) is_too_hard = true;
          stop.stop();  // for the other rows too
          return;
        }
        bool* row_out = mutable_data_of<bool>(out) + (row * (picks + 1) + step) * n;
        for (int64_t slot = 0, number = 0; slot < n; ++slot) {
          if (is_real[slot]) row_out[slot] = next[number++];
        }
        if (step == picks) break;
        const int64_t choice = data_of<int64_t>(prefix_c)[row * picks + step];
        if (!row_out[choice]) break;
        int64_t number = 0;
        for (int64_t slot = 0; slot < choice; ++slot) number += is_real[slot];
        constraints.place(number);
      }
    }
  });
  STD_TORCH_CHECK(!is_too_hard, RowConstraints::too_hard);
  STD_TORCH_CHECK(!stop(), Stop::sentence);
  return out;
}

// Both distributions: `kernel_of` takes the kernel out of the table.
template <typename KernelOf>
Tensor random_numbers(const Tensor& samples, int64_t seed, int64_t step, int64_t stream, int64_t count,
                      ScalarType dtype, KernelOf kernel_of) {
  check_random(samples, step, stream, count, dtype);
  const int64_t rows = samples.size(0);
  const Tensor sample_ids = made_contiguous(samples);
  const Tensor out = torch::stable::new_empty(samples, {rows, count}, dtype);
  const uint32_t step_and_stream = uint32_t(step & 0xFFFFFF) | uint32_t(stream) << 24;
  with_number_type(out, "dtype", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t* ids = data_of<int64_t>(sample_ids);
    T* to = mutable_data_of<T>(out);
    const auto kernel = kernel_of(row_kernels<T>());
    // Long rows are cut up, so that one sample can use all threads.
    constexpr int64_t longest_piece = 8192;
    const int64_t pieces = (count + longest_piece - 1) / longest_piece;
    const int64_t grain = rows_per_task(4 * (count < longest_piece ? count : longest_piece));
    torch::stable::parallel_for(0, rows * pieces, grain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / pieces, first = i % pieces * longest_piece;
        const int64_t here = count - first < longest_piece ? count - first : longest_piece;
        kernel(uint64_t(seed), uint64_t(ids[row]), step_and_stream, first, here, to + row * count + first);
      }
    });
  });
  return out;
}

Tensor random_uniform(const Tensor& samples, int64_t seed, int64_t step, int64_t stream, int64_t count,
                      ScalarType dtype) {
  return random_numbers(samples, seed, step, stream, count, dtype,
                        [](const auto& kernels) { return kernels.random_uniform; });
}

Tensor random_normal(const Tensor& samples, int64_t seed, int64_t step, int64_t stream, int64_t count,
                     ScalarType dtype) {
  return random_numbers(samples, seed, step, stream, count, dtype,
                        [](const auto& kernels) { return kernels.random_normal; });
}

int64_t checksum(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> list;
  std::vector<int64_t> bytes;
  for (const Tensor& tensor : tensors) {
    list.push_back(made_contiguous(tensor));
    bytes.push_back(with_number_type(tensor, "tensors", [&](auto* type) { return tensor.numel() * sizeof(*type); }));
  }
  std::vector<uint64_t> sums(list.size());
  torch::stable::parallel_for(0, int64_t(list.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sums[i] = cpu_kernels().checksum(list[i].const_data_ptr(), bytes[i]);
  });
  return int64_t(cpu_kernels().checksum(sums.data(), int64_t(8 * sums.size())));
}

std::string cpu_capability() { return cpu_kernels().capability; }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(softrank_ext, CPU, m) {
  m.impl("reflect", TORCH_BOX(&reflect));
  m.impl("decode_chamber", TORCH_BOX(&decode_chamber));
  m.impl("read_order", TORCH_BOX(&read_order));
  m.impl("lift_order", TORCH_BOX(&lift_order));
  m.impl("pick", TORCH_BOX(&pick));
  m.impl("decode_scores", TORCH_BOX(&WithChoices<&decode_scores>::call));
  m.impl("allowed_picks", TORCH_BOX(&allowed_picks));
  m.impl("random_uniform", TORCH_BOX(&random_uniform));
  m.impl("random_normal", TORCH_BOX(&random_normal));
  m.impl("checksum", TORCH_BOX(&checksum));
}

// Without a tensor argument there is no key to choose by: this one is called directly.
STABLE_TORCH_LIBRARY_IMPL(softrank_ext, BackendSelect, m) { m.impl("cpu_capability", TORCH_BOX(&cpu_capability)); }

}  // namespace softrank

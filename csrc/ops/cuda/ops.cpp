// The CUDA ops on tensors: outputs, device and stream for the launches. LibTorch stable ABI only.
#include <optional>
#include <tuple>

#include "../arguments.h"
#include "launch_place.h"
#include "launches.h"

namespace softrank {
namespace {

Tensor reflect(const Tensor& x) {
  const LaunchPlace place(x, "x");
  const Tensor input = made_contiguous(x);
  const Tensor out = torch::stable::empty_like(input);
  with_number_type(input, "x", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch_reflect(place.stream, data_of<T>(input), mutable_data_of<T>(out), input.numel());
  });
  return out;
}

std::tuple<Tensor, Tensor> decode_chamber(const Tensor& soft_ranks, const std::optional<Tensor>& mask) {
  check_chamber(soft_ranks, mask);
  const int64_t rows = soft_ranks.size(0), n = soft_ranks.size(1);
  const LaunchPlace place(soft_ranks, "soft_ranks");
  const Tensor values = made_contiguous(soft_ranks);
  const std::optional<Tensor> real = place.contiguous(mask, "mask");
  const Tensor order = torch::stable::new_empty(soft_ranks, {rows, n}, ScalarType::Long);
  const Tensor ranks = torch::stable::new_empty(soft_ranks, {rows, n}, ScalarType::Long);
  with_number_type(soft_ranks, "soft_ranks", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch_decode_chamber(place.stream, data_of<T>(values), real ? data_of<bool>(*real) : nullptr, rows, n,
                          mutable_data_of<int64_t>(order), mutable_data_of<int64_t>(ranks));
  });
  return {order, ranks};
}

std::tuple<Tensor, Tensor> pick(const Tensor& scores, const Tensor& remaining, const std::optional<Tensor>& uniform) {
  check_pick(scores, remaining, uniform);
  const int64_t rows = scores.size(0), n = scores.size(1);
  const LaunchPlace place(scores, "scores");
  const Tensor values = made_contiguous(scores), allowed = place.contiguous(remaining, "remaining");
  const std::optional<Tensor> draws = place.contiguous(uniform, "uniform");
  const Tensor choice = torch::stable::new_empty(scores, {rows}, ScalarType::Long);
  const Tensor log_prob = torch::stable::new_empty(scores, {rows}, scores.scalar_type());
  const Tensor weights = torch::stable::new_empty(scores, {rows, n}, scores.scalar_type());
  STD_TORCH_CHECK(rows == 0 || n > 0, "remaining must hold at least one item per row, got none in row 0");
  with_number_type(scores, "scores", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch_pick(place.stream, data_of<T>(values), data_of<bool>(allowed), draws ? data_of<T>(*draws) : nullptr, rows, n,
                mutable_data_of<int64_t>(choice), mutable_data_of<T>(log_prob), mutable_data_of<T>(weights));
  });
  return {choice, log_prob};
}

template <bool is_normal>
Tensor random_numbers(const Tensor& samples, int64_t seed, int64_t step, int64_t stream, int64_t count,
                      ScalarType dtype) {
  check_random(samples, step, stream, count, dtype);
  const int64_t rows = samples.size(0);
  const LaunchPlace place(samples, "samples");
  const Tensor ids = made_contiguous(samples);
  const Tensor out = torch::stable::new_empty(samples, {rows, count}, dtype);
  const uint32_t step_and_stream = uint32_t(step & 0xFFFFFF) | uint32_t(stream) << 24;
  with_number_type(out, "dtype", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch_random(place.stream, is_normal, data_of<int64_t>(ids), uint64_t(seed), step_and_stream, rows, count,
                  mutable_data_of<T>(out));
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(softrank_ext, CUDA, m) {
  m.impl("reflect", TORCH_BOX(&reflect));
  m.impl("decode_chamber", TORCH_BOX(&decode_chamber));
  m.impl("pick", TORCH_BOX(&pick));
  m.impl("random_uniform", TORCH_BOX(&random_numbers<false>));
  m.impl("random_normal", TORCH_BOX(&random_numbers<true>));
}

}  // namespace softrank

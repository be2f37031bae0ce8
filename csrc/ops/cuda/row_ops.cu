// The CUDA ops reflect, decode_chamber and pick on tensors. LibTorch stable ABI only.
#include <optional>
#include <tuple>

#include "launch.h"
#include "row_kernels.cuh"

namespace softrank {
namespace {

Tensor reflect(const Tensor& x) {
  const Tensor input = torch::stable::contiguous(x);
  const Tensor out = torch::stable::empty_like(input);
  const int64_t n = input.numel();
  with_number_type(input, "x", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch("reflect", reflect_kernel<T>, blocks_for(n, largest_block), largest_block, input, data_of<T>(input),
           mutable_data_of<T>(out), n);
  });
  return out;
}

std::tuple<Tensor, Tensor> decode_chamber(const Tensor& soft_ranks, const std::optional<Tensor>& mask) {
  STD_TORCH_CHECK(soft_ranks.dim() == 2, "soft_ranks must be (B, N), got ", soft_ranks.dim(), " dimensions");
  const int64_t rows = soft_ranks.size(0), n = soft_ranks.size(1);
  const Tensor values = torch::stable::contiguous(soft_ranks);
  std::optional<Tensor> real;
  if (mask) real = checked_argument(*mask, "mask", soft_ranks, "soft_ranks", ScalarType::Bool, rows * n);
  const Tensor order = torch::stable::new_empty(soft_ranks, {rows, n}, ScalarType::Long);
  const Tensor ranks = torch::stable::new_empty(soft_ranks, {rows, n}, ScalarType::Long);
  const int threads = threads_for_row(n);
  with_number_type(soft_ranks, "soft_ranks", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch("decode_chamber", decode_chamber_kernel<T>, rows * blocks_for(n, threads), threads, soft_ranks,
           data_of<T>(values), real ? data_of<bool>(*real) : nullptr, n, mutable_data_of<int64_t>(order),
           mutable_data_of<int64_t>(ranks));
  });
  return {order, ranks};
}

std::tuple<Tensor, Tensor> pick(const Tensor& scores, const Tensor& remaining, const std::optional<Tensor>& uniform) {
  STD_TORCH_CHECK(scores.dim() == 2, "scores must be (B, N), got ", scores.dim(), " dimensions");
  const int64_t rows = scores.size(0), n = scores.size(1);
  STD_TORCH_CHECK(rows == 0 || n > 0, "remaining must hold at least one item per row, got N = 0");
  const Tensor values = torch::stable::contiguous(scores);
  const Tensor allowed = checked_argument(remaining, "remaining", scores, "scores", ScalarType::Bool, rows * n);
  std::optional<Tensor> draws;
  if (uniform) draws = checked_argument(*uniform, "uniform", scores, "scores", scores.scalar_type(), rows);
  const Tensor choice = torch::stable::new_empty(scores, {rows}, ScalarType::Long);
  const Tensor log_prob = torch::stable::new_empty(scores, {rows}, scores.scalar_type());
  const Tensor weights = torch::stable::new_empty(scores, {rows, n}, scores.scalar_type());
  with_number_type(scores, "scores", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch("pick", pick_kernel<T>, rows, threads_for_row(n), scores, data_of<T>(values), data_of<bool>(allowed),
           draws ? data_of<T>(*draws) : nullptr, n, mutable_data_of<int64_t>(choice), mutable_data_of<T>(log_prob),
           mutable_data_of<T>(weights));
  });
  return {choice, log_prob};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(softrank_ext, CUDA, m) {
  m.impl("reflect", TORCH_BOX(&reflect));
  m.impl("decode_chamber", TORCH_BOX(&decode_chamber));
  m.impl("pick", TORCH_BOX(&pick));
}

}  // namespace softrank

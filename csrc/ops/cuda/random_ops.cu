// The CUDA ops random_uniform and random_normal; compiled with floating-point contraction off. LibTorch stable ABI
// only.
#include "launch.h"
#include "random_kernels.cuh"

namespace softrank {
namespace {

template <bool is_normal>
Tensor random_numbers(const Tensor& samples, int64_t seed, int64_t step, int64_t stream, int64_t count,
                      ScalarType dtype) {
  STD_TORCH_CHECK(samples.dim() == 1, "samples must be (B,), got ", samples.dim(), " dimensions");
  const int64_t rows = samples.size(0);
  const Tensor ids = checked_argument(samples, "samples", samples, "samples", ScalarType::Long, rows);
  const Tensor out = torch::stable::new_empty(samples, {rows, count}, dtype);
  const uint32_t step_and_stream = uint32_t(step & 0xFFFFFF) | uint32_t(stream) << 24;
  with_number_type(out, "dtype", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(is_normal ? "random_normal" : "random_uniform", random_kernel<T, is_normal>, random_blocks(rows, count),
           random_block, samples, data_of<int64_t>(ids), uint64_t(seed), step_and_stream, rows, count,
           mutable_data_of<T>(out));
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(softrank_ext, CUDA, m) {
  m.impl("random_uniform", TORCH_BOX(&random_numbers<false>));
  m.impl("random_normal", TORCH_BOX(&random_numbers<true>));
}

}  // namespace softrank

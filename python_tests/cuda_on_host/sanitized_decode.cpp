// Decodes small batches, reads orders off soft ranks and picks by the CUDA kernels on the host, for the sanitizers:
// what matters is who touches what, not the numbers. Without arguments nothing may be reported; with one, there is a
// fault that must be:
//   barrier FILE LINE   that barrier is ignored
//   short               shared memory is one integer short
//   unset               a weight is not initialised
#include <cstdio>
#include <string>

#include "decoder_on_host.h"
// After the stand-ins for CUDA's words.
#include "../../csrc/ops/cuda/row_kernels.cuh"

using namespace softrank;

namespace {

constexpr int64_t B = 3, N = 6, D = 64, F = 72, layers = 1;

struct Numbers {
  std::mt19937 random{1};

  std::vector<float> normal(int64_t count, float scale) {
    std::normal_distribution<float> law(0.0f, scale);
    std::vector<float> made(count);
    for (float& number : made) number = law(random);
    return made;
  }
};

template <typename Products>
Outcome decode(const DecodePlan& plan, bool norm_first, bool has_draft, bool has_unset_weight) {
  const DecoderSizes sizes{int(layers), int(D), int(F), 8, int(N), norm_first};
  Numbers numbers;
  std::vector<std::vector<float>> list;
  for (int64_t size :
       {D, D, 3 * D * D, 3 * D, D * D, D, D, D, D * D, D, 2 * D * D, 2 * D, D * D, D, D, D, F * D, F, D * F, D, D, D}) {
    list.push_back(numbers.normal(size, 0.15f));
  }
  const std::unique_ptr<float[]> unset_weight = unset<float>(F);
  std::vector<const float*> weights;
  for (const auto& weight : list) weights.push_back(weight.data());
  if (has_unset_weight) weights[17] = unset_weight.get();
  const auto packed = packed_on_host<Products>(sizes, weights.data());
  const auto memory = numbers.normal(B * N * D, 1.0f), tokens = numbers.normal(B * N * D, 1.0f);
  const auto start = numbers.normal(B * D, 1.0f), places = numbers.normal(N * D, 1.0f);
  const auto head_keys = numbers.normal(B * N * D, 0.2f), head_bias = numbers.normal(B * N, 1.0f);
  const auto mask = std::make_unique<bool[]>(B * N);
  std::vector<float> uniform(B * N);
  std::vector<int64_t> draft(B * N), order(B * N), work(B * 2);
  for (int64_t i = 0; i < B * N; ++i) {
    mask[i] = i != 8;
    uniform[i] = float(i % 7) / 7.0f;
    draft[i] = i / N == 1 ? (i % N < 2 ? i % N : i % N + 1 < N ? i % N + 1 : 2) : i % N;  // padding last
  }
  std::vector<float> log_probs(B * N);
  DecodeArguments<float> p{};
  p.sizes = sizes;
  p.rows = B;
  p.tokens = tokens.data();
  p.start = start.data();
  p.places = places.data();
  p.head_keys = head_keys.data();
  p.head_bias = head_bias.data();
  p.mask = mask.get();
  p.uniform = uniform.data();
  p.temperature = 1.0f;
  p.draft = has_draft ? draft.data() : nullptr;
  p.order = order.data();
  p.log_probs = log_probs.data();
  p.work = work.data();
  HostScratch<float> scratch;
  const Outcome prepared = prepare_decode<Products>(plan, packed, memory.data(), p, scratch);
  if (prepared != Outcome::finished) return prepared;
  const Outcome outcome = launch_decode<Products>(plan, p);
  for (int64_t i = 0; i < B * N; ++i) {
    if (log_probs[i] > 0.0f) std::printf("log-probability %g\n", double(log_probs[i]));
  }
  return outcome;
}

// decode_chamber, then pick, on rows of several tiles and runs.
Outcome run_row_kernels() {
  constexpr int64_t rows = 2, n = 300;
  const int threads = threads_for_row(n);
  Numbers numbers;
  const auto scores = numbers.normal(rows * n, 1.0f);
  const auto mask = std::make_unique<bool[]>(rows * n);
  for (int64_t i = 0; i < rows * n; ++i) mask[i] = i % 7 != 3;
  std::vector<int64_t> order(rows * n), ranks(rows * n), choice(rows);
  const std::vector<float> uniform(rows, 0.4f);
  std::vector<float> log_prob(rows);
  const auto weights = unset<float>(rows * n);
  const Outcome read = cuda_on_host::launch_in_turn(rows * blocks_for(n, threads), threads, [&] {
    decode_chamber_kernel<float>(scores.data(), mask.get(), n, order.data(), ranks.data());
  });
  if (read != Outcome::finished) return read;
  const Outcome picked = cuda_on_host::launch_in_turn(rows, threads, [&] {
    pick_kernel<float>(scores.data(), mask.get(), uniform.data(), n, choice.data(), log_prob.data(), weights.get());
  });
  for (int64_t row = 0; row < rows; ++row) {
    if (log_prob[row] > 0.0f || order[ranks[row * n]] < 0) std::printf("log-probability %g\n", double(log_prob[row]));
  }
  return picked;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string fault = count > 1 ? arguments[1] : "";
  if (fault == "barrier" && count > 3) {
    cuda_on_host::ignored_file = arguments[2];
    cuda_on_host::ignored_barrier = std::stoi(arguments[3]);
  }
  if (fault == "short") cuda_on_host::missing_shared_bytes = sizeof(int);
  const bool is_unset = fault == "unset";
  using Plain = PlainProducts<float>;
  for (const Outcome outcome :
       {run_row_kernels(), decode<Plain>({2, 1, 8}, true, false, is_unset),
        decode<Plain>({8, 4, 2}, false, true, is_unset), decode<TensorProducts>({8, 4, 2}, true, true, is_unset)}) {
    if (outcome != Outcome::finished) {
      std::printf("the block's threads did not meet\n");
      return 3;
    }
  }
  std::printf("decoded\n");
}

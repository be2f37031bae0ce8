// decode_order on the host, for ctypes. The functions return an Outcome: 0 finished, 1 trapped, 2 diverged, or 3 if the
// rules leave no order or are too hard.
#include "decoder_on_host.h"

using namespace softrank;

namespace {

// What is passed from Python, in this order; pointers that may be null are those of ops.Choices.
template <typename T>
struct HostCall {
  const T* const* weights;
  const T *memory, *tokens, *start, *places, *head_keys, *head_bias;
  const bool* mask;
  const T* uniform;
  const int64_t *forced, *draft;
  const bool *before, *allowed;
  const int64_t* group;
  int64_t* order;
  T* log_probs;
  int64_t* work;
  int64_t* reads;  // how often the host waited for picks
  int64_t rows, layers, width, feed_width, heads, slots, forced_places;
  int64_t block_tokens, places_per_pass, attention_warps;
  double temperature;
  int64_t norm_first, is_head_shared;
};

template <typename Products, typename T>
int decode(const HostCall<T>& call) {
  const DecoderSizes sizes{int(call.layers), int(call.width), int(call.feed_width),
                           int(call.heads),  int(call.slots), call.norm_first != 0};
  const DecodePlan plan{int(call.block_tokens), int(call.places_per_pass), int(call.attention_warps)};
  const std::vector<T> packed = packed_on_host<Products>(sizes, call.weights);
  DecodeArguments<T> p{};
  p.sizes = sizes;
  p.rows = call.rows;
  p.tokens = call.tokens;
  p.start = call.start;
  p.places = call.places;
  p.head_keys = call.head_keys;
  p.head_bias = call.head_bias;
  p.is_head_shared = call.is_head_shared != 0;
  p.mask = call.mask;
  p.uniform = call.uniform;
  p.forced = call.forced;
  p.forced_places = int(call.forced_places);
  p.temperature = T(call.temperature);
  p.draft = call.draft;
  p.order = call.order;
  p.log_probs = call.log_probs;
  p.work = call.work;
  HostScratch<T> scratch;
  Outcome outcome = prepare_decode<Products>(plan, packed, call.memory, p, scratch);
  if (outcome != Outcome::finished) return int(outcome);
  if (call.before == nullptr && call.allowed == nullptr && call.group == nullptr) {
    return int(launch_decode<Products>(plan, p));
  }
  const int64_t n = call.slots;
  const auto candidates = std::make_unique<bool[]>(call.rows * n);
  p.candidates = candidates.get();
  p.most_passes = 1;
  try {
    Stop stop(nullptr);  // Python has no signals here
    decode_under_rules(
        call.rows, n, call.mask,
        [&](int64_t row) {
          return RowRules{call.before == nullptr ? nullptr : call.before + row * n * n,
                          call.allowed == nullptr ? nullptr : call.allowed + row * n * n,
                          call.group == nullptr ? nullptr : call.group + row * n};
        },
        candidates.get(),
        [&](int64_t place) {
          p.is_begun = place > 0;
          const Outcome own = launch_decode<Products>(plan, p);
          outcome = own == Outcome::finished ? outcome : own;
        },
        [&](int* picks) {
          ++*call.reads;
          for (int64_t row = 0; row < call.rows; ++row) picks[row] = p.progress[3 * row + 2];
        },
        stop);
  } catch (const std::runtime_error&) {
    return 3;
  }
  return int(outcome);
}

}  // namespace

extern "C" {

void ignore_barrier(int line) { cuda_on_host::ignored_barrier = line; }

int decode_order_float32(const HostCall<float>* call) { return decode<PlainProducts<float>>(*call); }
int decode_order_float32_tensor(const HostCall<float>* call) { return decode<TensorProducts>(*call); }
int decode_order_float64(const HostCall<double>* call) { return decode<PlainProducts<double>>(*call); }

// The plan for a GPU with so many processors and bytes of shared memory, into plan: tokens, places per pass, warps that
// attend, and whether tensor cores are used.
void plan_float32(int64_t layers, int64_t width, int64_t feed_width, int64_t slots, int64_t rows, bool has_draft,
                  int64_t processors, int64_t bytes, bool has_tensor_cores, int64_t* plan) {
  const DecoderSizes sizes{int(layers), int(width), int(feed_width), 1, int(slots), true};
  const Gpu gpu{int(processors), bytes, has_tensor_cores};
  const bool uses = uses_tensor_cores<TensorProducts>(sizes, gpu);
  const DecodePlan made = uses ? plan_decode<TensorProducts>(sizes, rows, has_draft, gpu)
                               : plan_decode<PlainProducts<float>>(sizes, rows, has_draft, gpu);
  plan[0] = made.tokens, plan[1] = made.places_per_pass, plan[2] = made.attention_warps, plan[3] = uses;
}
}

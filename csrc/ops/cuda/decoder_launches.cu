// The decoder's launches. A file of its own: unlike the noise it may contract products and sums.
#include "decoder_kernels.cuh"
#include "decoder_launches.h"
#include "decoder_plan.h"
#include "launch.cuh"

namespace softrank {
namespace {

constexpr const char* name = "decode_order";

// Slots of the memory that a block takes; fewer of wide numbers, for shared memory's sake.
template <typename T>
constexpr int memory_tokens = 64 / sizeof(T);

int attribute_of_device(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check_cuda(name, cudaGetDevice(&device));
  check_cuda(name, cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

Gpu current_gpu() {
  return {attribute_of_device(cudaDevAttrMultiProcessorCount),
          attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          attribute_of_device(cudaDevAttrComputeCapabilityMajor) >= 8};
}

// Calls `body` with a null pointer of the products that the current device is to use.
template <typename T, typename Body>
auto with_products(const DecoderSizes& sizes, Body body) {
  if constexpr (sizeof(T) == 4) {
    if (uses_tensor_cores<TensorProducts>(sizes, current_gpu())) return body(static_cast<TensorProducts*>(nullptr));
  }
  return body(static_cast<PlainProducts<T>*>(nullptr));
}

int64_t blocks_of(int64_t things, int64_t threads) { return (things + threads - 1) / threads; }

}  // namespace

template <typename T>
int64_t packed_decoder_numbers(const DecoderSizes& sizes) {
  return with_products<T>(sizes, [&]<typename Products>(Products*) { return packed_numbers<Products>(sizes); });
}

template <typename T>
void launch_pack_decoder(void* stream, const DecoderSizes& sizes, const T* const* weights, T* packed) {
  with_products<T>(sizes, [&]<typename Products>(Products*) {
    for_each_part<Products>(
        sizes,
        [&](int number, int64_t at) {
          launch("pack_decoder", pack_norm_kernel<T>, blocks_of(2 * sizes.width, decoder_threads), decoder_threads, 0,
                 stream, weights[number], weights[number + 1], sizes.width, packed + at);
        },
        [&](int number, int outputs, int inputs, int first_output, int all_outputs, int64_t at) {
          launch("pack_decoder", pack_matrix_kernel<Products, T>,
                 blocks_of(int64_t(outputs) * (inputs + 1), decoder_threads), decoder_threads, 0, stream,
                 weights[number], weights[number + 1], outputs, inputs, first_output, all_outputs, packed + at);
        });
  });
}

template <typename T>
void launch_memory_keys(void* stream, const DecoderSizes& sizes, const T* packed, const T* memory, int64_t slots,
                        T* memory_keys) {
  with_products<T>(sizes, [&]<typename Products>(Products*) {
    constexpr int tokens = memory_tokens<T>;
    launch("decode_order", memory_keys_kernel<Products, tokens, T>, blocks_of(slots, tokens), decoder_threads,
           memory_keys_shared_bytes<Products, tokens>(sizes), stream, sizes, packed, memory, slots, memory_keys);
  });
}

template <typename T>
DecodeLayout layout_decode(const DecoderSizes& sizes, int64_t rows, bool has_draft) {
  const Gpu gpu = current_gpu();
  const DecodePlan plan = with_products<T>(
      sizes, [&]<typename Products>(Products*) { return plan_decode<Products>(sizes, rows, has_draft, gpu); });
  if (plan.tokens == 0) {
    throw std::runtime_error("decode_order: a model of width " + std::to_string(sizes.width) + " and feed-forward " +
                             std::to_string(sizes.feed_width) + " with " + std::to_string(sizes.slots) +
                             " slots does not fit into this GPU's shared memory of " +
                             std::to_string(gpu.shared_bytes) + " bytes per block; use Engine(compiled=False)");
  }
  return {plan.tokens, plan.places_per_pass, plan.attention_warps, plan.blocks(rows) * plan.tokens};
}

template <typename T>
void launch_decode_order(void* stream, const DecodeLayout& layout, DecodeArguments<T> arguments) {
  arguments.places_per_pass = layout.places_per_pass;
  arguments.attention_warps = layout.attention_warps;
  with_products<T>(arguments.sizes, [&]<typename Products>(Products*) {
    with_tokens<Products::least_tokens>(layout.tokens, [&]<int tokens>() {
      launch(name, decode_order_kernel<Products, tokens>, layout.score_rows / tokens, decoder_threads,
             shared_bytes<Products, tokens>(arguments.sizes, arguments.attention_warps), stream, arguments);
    });
  });
}

void copy(void* stream, const void* from, void* to, int64_t bytes) {
  check_cuda(name, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

void wait_for(void* stream) { check_cuda(name, cudaStreamSynchronize(static_cast<cudaStream_t>(stream))); }

#define SOFTRANK_INSTANTIATE(T)                                                                  \
  template int64_t packed_decoder_numbers<T>(const DecoderSizes&);                               \
  template void launch_pack_decoder(void*, const DecoderSizes&, const T* const*, T*);            \
  template void launch_memory_keys(void*, const DecoderSizes&, const T*, const T*, int64_t, T*); \
  template DecodeLayout layout_decode<T>(const DecoderSizes&, int64_t, bool);                    \
  template void launch_decode_order(void*, const DecodeLayout&, DecodeArguments<T>);
SOFTRANK_INSTANTIATE(float)
SOFTRANK_INSTANTIATE(double)
#undef SOFTRANK_INSTANTIATE

}  // namespace softrank

// The decoder's CUDA kernels on the host: packing, the memory's keys, decoding, as ops/cuda/decoder_launches.cu does
// it.
#pragma once

#include "cuda_on_host.h"
// After the stand-ins for CUDA's words.
#include "../../csrc/ops/cuda/decoder_kernels.cuh"
#include "../../csrc/ops/cuda/decoder_plan.h"

namespace softrank {

using cuda_on_host::launch;
using cuda_on_host::launch_without_meetings;
using cuda_on_host::Outcome;

inline int64_t blocks_of(int64_t things, int64_t threads) { return (things + threads - 1) / threads; }

template <typename Products, typename T>
std::vector<T> packed_on_host(const DecoderSizes& sizes, const T* const* weights) {
  // At a multiple of 16 bytes, as operator new aligns.
  std::vector<T> packed(packed_numbers<Products>(sizes));
  for_each_part<Products>(
      sizes,
      [&](int number, int64_t at) {
        launch_without_meetings(blocks_of(2 * sizes.width, decoder_threads), decoder_threads, [&] {
          pack_norm_kernel(weights[number], weights[number + 1], sizes.width, packed.data() + at);
        });
      },
      [&](int number, int outputs, int inputs, int first_output, int all_outputs, int64_t at) {
        launch_without_meetings(blocks_of(int64_t(outputs) * (inputs + 1), decoder_threads), decoder_threads, [&] {
          pack_matrix_kernel<Products>(weights[number], weights[number + 1], outputs, inputs, first_output, all_outputs,
                                       packed.data() + at);
        });
      });
  return packed;
}

// Scratch of the decoder, unset: what is read before it is written is NaN, or seen by MemorySanitizer.
template <typename T>
struct HostScratch {
  std::unique_ptr<T[]> memory_keys, caches, scores;
  std::unique_ptr<int[]> real_slots, drafted, progress;
  std::unique_ptr<bool[]> remaining;
};

template <typename T>
std::unique_ptr<T[]> unset(int64_t count) {
  auto made = std::make_unique_for_overwrite<T[]>(count);
  std::memset(static_cast<void*>(made.get()), 0xFF, count * sizeof(T));
#if defined(CUDA_ON_HOST_MSAN)
  __msan_allocated_memory(made.get(), count * sizeof(T));
#endif
  return made;
}

// Fills in scratch and memory keys, and launches the decoder once.
template <typename Products, typename T>
Outcome prepare_decode(const DecodePlan& plan, const std::vector<T>& packed, const T* memory, DecodeArguments<T>& p,
                       HostScratch<T>& scratch) {
  const int64_t B = p.rows, N = p.sizes.slots, D = p.sizes.width, layers = p.sizes.layers;
  scratch = {unset<T>(B * N * layers * 2 * D),
             unset<T>(B * N * layers * 2 * D),
             unset<T>(plan.blocks(B) * plan.tokens * N),
             unset<int>(B * N),
             unset<int>(B * N),
             unset<int>(B * 3),
             unset<bool>(B * N)};
  p.packed = packed.data();
  p.memory_keys = scratch.memory_keys.get();
  p.caches = scratch.caches.get();
  p.scores = scratch.scores.get();
  p.real_slots = scratch.real_slots.get();
  p.drafted = scratch.drafted.get();
  p.progress = scratch.progress.get();
  p.remaining = scratch.remaining.get();
  p.places_per_pass = plan.places_per_pass;
  p.attention_warps = plan.attention_warps;
  p.most_passes = INT32_MAX;
  return with_tokens<Products::least_tokens>(plan.tokens, [&]<int tokens>() {
    return launch(
        blocks_of(B * N, tokens), decoder_threads,
        [&] { memory_keys_kernel<Products, tokens>(p.sizes, p.packed, memory, B * N, scratch.memory_keys.get()); },
        memory_keys_shared_bytes<Products, tokens>(p.sizes));
  });
}

template <typename Products, typename T>
Outcome launch_decode(const DecodePlan& plan, const DecodeArguments<T>& p) {
  return with_tokens<Products::least_tokens>(plan.tokens, [&]<int tokens>() {
    return launch(
        plan.blocks(p.rows), decoder_threads, [&] { decode_order_kernel<Products, tokens>(p); },
        shared_bytes<Products, tokens>(p.sizes, plan.attention_warps));
  });
}

}  // namespace softrank

// Launches of the decoder's kernels on raw device pointers, for T = float and double; decoder_kernels.cuh says what
// each computes. The current device must be that of the stream (a cudaStream_t). A call that fails throws
// std::runtime_error.
#pragma once

#include <cstdint>

#include "decoder_layout.h"

namespace softrank {

// Numbers of the decoder's packed weights on the current device, whose processors decide how they are laid out.
template <typename T>
int64_t packed_decoder_numbers(const DecoderSizes& sizes);

// weights: the list of ops.Transformer, on the host, of device pointers. packed: all zeros before.
template <typename T>
void launch_pack_decoder(void* stream, const DecoderSizes& sizes, const T* const* weights, T* packed);

// memory (B * N, D) to memory_keys (B * N, layers, 2, D).
template <typename T>
void launch_memory_keys(void* stream, const DecoderSizes& sizes, const T* packed, const T* memory, int64_t slots,
                        T* memory_keys);

// What the caller has to make room for: `scores` of DecodeArguments has score_rows rows.
struct DecodeLayout {
  int tokens, places_per_pass, attention_warps;
  int64_t score_rows;
};

// How the decoder will be laid on the current device. Throws if its shared memory is too small.
template <typename T>
DecodeLayout layout_decode(const DecoderSizes& sizes, int64_t rows, bool has_draft);

// places_per_pass and attention_warps of the arguments are taken from the layout.
template <typename T>
void launch_decode_order(void* stream, const DecodeLayout& layout, DecodeArguments<T> arguments);

// Copies behind what the stream does, between host and device. `wait_for` waits until they are done.
void copy(void* stream, const void* from, void* to, int64_t bytes);
void wait_for(void* stream);

}  // namespace softrank

// Matrix products of a block's tokens with packed weights, by all threads of the block.
//
// Weights stream from global memory (they stay in L2), activations are in shared memory, token after token. A product
// ends with a barrier and hands out each result by store(token, output, value). Every sum is a chain of additions whose
// order depends on the matrix alone, so a token has the same bits whatever stands beside it.
#pragma once

#include "decoder_layout.h"

namespace softrank {

template <typename T>
struct alignas(16) Four {
  T x, y, z, w;
};

// One or two loads of 16 bytes.
template <typename T>
__device__ inline Four<T> load_four(const T* at) {
  return *reinterpret_cast<const Four<T>*>(at);
}

// On the ordinary cores. A matrix is (inputs / 4, outputs, 4) numbers, so that a warp reads 32 neighbouring outputs at
// once, then its bias.
template <typename T>
struct PlainProducts {
  using Number = T;
  static constexpr int output_step = 4, input_step = 4, row_padding = 0, least_tokens = 1, mark = 0;

  // Whether blocks of so many tokens are launched on a GPU with or without tensor cores, which are better at many. Few
  // sizes do: each is a kernel more to compile.
  static constexpr bool is_launched(int tokens, bool has_tensor_cores) {
    return tokens == 1 || tokens == 4 || (tokens == 16 && sizeof(T) == 4 && !has_tensor_cores);
  }

  SOFTRANK_ROW int partial_numbers(int tokens) { return decoder_threads * tokens; }

  // Where the weight from an input to an output stands in a matrix of so many padded outputs and inputs.
  SOFTRANK_ROW int64_t weight_at(int output, int input, int64_t outputs, int64_t) {
    return (input / 4 * outputs + output) * 4 + input % 4;
  }

  // Each thread owns outputs; if there are few, groups of threads share the inputs of each.
  template <int tokens, typename Store>
  __device__ static void multiply(const T* a, int stride, const T* matrix, int outputs, int inputs, T* partial,
                                  Store store) {
    const int me = threadIdx.x, padded_outputs = int(rounded_up(outputs, output_step));
    const int quads = int(rounded_up(inputs, input_step)) / 4;
    const T* bias = matrix + int64_t(padded_outputs) * quads * 4;
    const int groups = outputs <= decoder_threads / 2 ? decoder_threads / outputs : 1;
    const int group = groups > 1 ? me / outputs : 0;
    const int share = (quads + groups - 1) / groups, first = group * share;
    const int end = group >= groups ? first : first + share < quads ? first + share : quads;
    for (int output = groups > 1 ? me % outputs : me; output < outputs && group < groups; output += decoder_threads) {
      T sum[tokens] = {};
      const T* weight = matrix + (int64_t(first) * padded_outputs + output) * 4;
#pragma unroll 4
      for (int quad = first; quad < end; ++quad, weight += int64_t(padded_outputs) * 4) {
        const Four<T> w = load_four(weight);
#pragma unroll
        for (int token = 0; token < tokens; ++token) {
          const Four<T> x = load_four(a + token * stride + 4 * quad);
          sum[token] += x.x * w.x;
          sum[token] += x.y * w.y;
          sum[token] += x.z * w.z;
          sum[token] += x.w * w.w;
        }
      }
#pragma unroll
      for (int token = 0; token < tokens; ++token) {
        if (groups > 1) {
          partial[(group * tokens + token) * outputs + output] = sum[token];
        } else {
          store(token, output, sum[token] + bias[output]);
        }
      }
    }
    __syncthreads();  // results, or the groups' parts of them, are there
    if (groups == 1) return;
    for (int i = me; i < tokens * outputs; i += decoder_threads) {
      T sum = bias[i % outputs];
      for (int part = 0; part < groups; ++part) sum += partial[part * tokens * outputs + i];
      store(i / outputs, i % outputs, sum);
    }
    __syncthreads();  // the groups' parts are summed
  }
};

}  // namespace softrank

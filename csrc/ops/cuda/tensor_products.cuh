// Matrix products in float32 by tensor cores (compute capability 8.0 and later), as products.cuh says.
//
// A tensor core multiplies tf32 numbers, which keep 10 bits behind the point. Each number goes in as two of them, its
// rounded value and what that leaves, and three of the four products are taken: float32 in effect. Tensor cores may cut
// off where float32 rounds, so only 8 products at a time are summed there; the rest of a sum is ordinary addition.
#pragma once

#include "products.cuh"

namespace softrank {

#if defined(__CUDACC__)
// The nearest tf32 number.
__device__ inline float to_tf32(float x) {
#if __CUDA_ARCH__ >= 800
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
#else
  return x;
#endif
}

// sum (16 x 8) += a (16 x 8) b (8 x 8) by one warp; the fragments are those of mma.m16n8k8 in the PTX manual.
__device__ inline void add_tile_product(float (&sum)[4], const float (&a)[4], const float (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#endif
}
#endif

// A matrix is (outputs / 16, inputs / 8, lane, 4) numbers, so that a lane's part of a tile is one load, then its bias.
// The tokens are the columns of a tile. Activations are padded so that the lanes of a tile hit different banks.
struct TensorProducts {
  using Number = float;
  static constexpr int output_step = 16, input_step = 8, row_padding = 4, least_tokens = 8, mark = 4;

  static constexpr bool is_launched(int, bool has_tensor_cores) { return has_tensor_cores; }

  SOFTRANK_ROW int partial_numbers(int) { return 0; }

  SOFTRANK_ROW int64_t weight_at(int output, int input, int64_t, int64_t inputs) {
    const int row = output % 16, column = input % 8;
    const int64_t tile = output / 16 * (inputs / 8) + input / 8;
    return (tile * 32 + row % 8 * 4 + column % 4) * 4 + row / 8 + column / 4 * 2;
  }

  // Each warp owns tiles of 16 outputs.
  template <int tokens, typename Store>
  __device__ static void multiply(const float* a, int stride, const float* matrix, int outputs, int inputs, float*,
                                  Store store) {
    static_assert(tokens % 8 == 0);
    constexpr int columns = tokens / 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    const int tiles = int(rounded_up(outputs, output_step)) / 16, steps = int(rounded_up(inputs, input_step)) / 8;
    const float* bias = matrix + int64_t(tiles) * steps * 128;
    for (int tile = warp; tile < tiles; tile += decoder_warps) {
      float sum[columns][4];
#pragma unroll
      for (int column = 0; column < columns; ++column) {
        for (int i = 0; i < 4; ++i) sum[column][i] = bias[16 * tile + group + i / 2 * 8];
      }
      const float* weight = matrix + (int64_t(tile) * steps * 32 + lane) * 4;
#pragma unroll 4
      for (int step = 0; step < steps; ++step, weight += 128) {
        const Four<float> w = load_four(weight);
        const float large[4] = {to_tf32(w.x), to_tf32(w.y), to_tf32(w.z), to_tf32(w.w)};
        const float small[4] = {to_tf32(w.x - large[0]), to_tf32(w.y - large[1]), to_tf32(w.z - large[2]),
                                to_tf32(w.w - large[3])};
#pragma unroll
        for (int column = 0; column < columns; ++column) {
          const float* x = a + (8 * column + group) * stride + 8 * step + member;
          const float x_large[2] = {to_tf32(x[0]), to_tf32(x[4])};
          const float x_small[2] = {to_tf32(x[0] - x_large[0]), to_tf32(x[4] - x_large[1])};
          float part[4] = {};
          add_tile_product(part, small, x_large);
          add_tile_product(part, large, x_small);
          add_tile_product(part, large, x_large);
          for (int i = 0; i < 4; ++i) sum[column][i] += part[i];
        }
      }
#pragma unroll
      for (int column = 0; column < columns; ++column) {
        for (int i = 0; i < 4; ++i) {
          const int output = 16 * tile + group + i / 2 * 8;
          if (output < outputs) store(8 * column + 2 * member + i % 2, output, sum[column][i]);
        }
      }
    }
    __syncthreads();  // the results are there
  }
};

}  // namespace softrank

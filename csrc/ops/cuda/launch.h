// What every CUDA op does around its kernel: number types, checks of arguments, the launch.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <type_traits>

namespace softrank {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Calls `body` with a null pointer of the tensor's number type.
template <typename Body>
void with_number_type(const Tensor& tensor, const char* name, Body body) {
  if (tensor.scalar_type() == ScalarType::Float) return body(static_cast<float*>(nullptr));
  STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Double, name, " must be float32 or float64");
  body(static_cast<double*>(nullptr));
}

template <typename T>
const T* data_of(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
T* mutable_data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// A kernel reads raw pointers: an argument of another dtype, size or device would be read out of bounds.
inline Tensor checked_argument(const Tensor& tensor, const char* name, const Tensor& beside, const char* beside_name,
                               ScalarType dtype, int64_t size) {
  STD_TORCH_CHECK(tensor.scalar_type() == dtype && tensor.numel() == size, name, " does not fit ", beside_name,
                  " in dtype or shape: wanted ", size, " numbers, got ", tensor.numel());
  STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == beside.get_device_index(), name,
                  " must be on the device of ", beside_name);
  return torch::stable::contiguous(tensor);
}

// Launches on the current stream of the device of `on`; an empty grid is no launch.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads, const Tensor& on,
            Arguments... arguments) {
  if (blocks == 0) return;
  STD_TORCH_CHECK(blocks <= INT32_MAX, name, ": the input is too large for one launch, it takes ", blocks, " blocks");
  const int32_t device = on.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const auto stream = torch::stable::accelerator::getCurrentStream(device);
  kernel<<<unsigned(blocks), threads, 0, static_cast<cudaStream_t>(stream.nativeHandle())>>>(Parameters(arguments)...);
  // Not STD_CUDA_KERNEL_LAUNCH_CHECK: its helper is missing from CPU builds of torch, and this library must load there
  // too.
  const cudaError_t error = cudaGetLastError();
  STD_TORCH_CHECK(error == cudaSuccess, name, ": the CUDA launch failed: ", cudaGetErrorString(error));
}

}  // namespace softrank

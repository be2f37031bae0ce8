// Where the CUDA ops launch: the device and stream of a tensor, on which the other arguments must be too. Stable ABI
// only.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include "../tensors.h"

namespace softrank {

inline int32_t cuda_device_of(const Tensor& tensor, const char* name) {
  STD_TORCH_CHECK(tensor.is_cuda(), name, " must be on a CUDA device");
  return tensor.get_device_index();
}

// Makes the device of an argument the current one while it lives, and knows that device's current stream. To be made
// when the shapes are checked, so that these checks need no device.
struct LaunchPlace {
  LaunchPlace(const Tensor& tensor, const char* name)
      : device(cuda_device_of(tensor, name)),
        guard(device),
        stream(torch::stable::accelerator::getCurrentStream(device).nativeHandle()) {}

  // The tensor, contiguous, if it is there too.
  Tensor contiguous(const Tensor& tensor, const char* name) const {
    STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == device, name, " must be on CUDA device ", device,
                    " like the first argument");
    return made_contiguous(tensor);
  }
  std::optional<Tensor> contiguous(const std::optional<Tensor>& tensor, const char* name) const {
    return tensor ? std::optional(contiguous(*tensor, name)) : std::nullopt;
  }

  int32_t device;
  torch::stable::accelerator::DeviceGuard guard;
  void* stream;
};

}  // namespace softrank

// Where the CUDA ops launch: the device and stream of a tensor, and arguments that must be there too. Stable ABI only.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include "../tensors.h"

namespace softrank {

// Makes the device of a tensor the current one while it lives, and knows that device's current stream.
struct LaunchPlace {
  explicit LaunchPlace(const Tensor& tensor)
      : guard(tensor.get_device_index()),
        stream(torch::stable::accelerator::getCurrentStream(tensor.get_device_index()).nativeHandle()) {}
  torch::stable::accelerator::DeviceGuard guard;
  void* stream;
};

// The argument, contiguous, if it has this dtype and size and is on the device of another one.
inline Tensor checked_argument(const Tensor& tensor, const char* name, ScalarType dtype, int64_t size,
                               const Tensor& beside) {
  check_argument(tensor, name, dtype, size);
  STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == beside.get_device_index(), name,
                  " must be on CUDA device ", beside.get_device_index(), " like the first argument");
  return made_contiguous(tensor);
}

}  // namespace softrank

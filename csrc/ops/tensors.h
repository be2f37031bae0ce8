// What the CPU and CUDA ops share: typed access to stable-ABI tensors.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>

namespace softrank {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Calls `body` with a null pointer of the tensor's number type.
template <typename Body>
auto with_number_type(const Tensor& tensor, const char* name, Body body) {
  if (tensor.scalar_type() == ScalarType::Float) return body(static_cast<float*>(nullptr));
  STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Double, name, " must be float32 or float64");
  return body(static_cast<double*>(nullptr));
}

template <typename T>
const T* data_of(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
T* mutable_data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// A kernel reads raw pointers: an argument of another dtype or shape would be read out of bounds.
inline void check_shape(const Tensor& tensor, const char* name, ScalarType dtype,
                        std::initializer_list<int64_t> shape) {
  STD_TORCH_CHECK(tensor.scalar_type() == dtype, name, " has the wrong dtype");
  bool is_right = tensor.dim() == int64_t(shape.size());
  std::string wanted, got;
  for (const int64_t size : shape) wanted += (wanted.empty() ? "" : ", ") + std::to_string(size);
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    is_right = is_right && tensor.size(dim) == shape.begin()[dim];
    got += (got.empty() ? "" : ", ") + std::to_string(tensor.size(dim));
  }
  STD_TORCH_CHECK(is_right, name, " must be (", wanted, "), got (", got, ")");
}

inline void check_dimensions(const Tensor& tensor, const char* name, int64_t dimensions) {
  STD_TORCH_CHECK(tensor.dim() == dimensions, name, " must have ", dimensions, " dimensions, got ", tensor.dim());
}

// The tensor itself if it is contiguous: asking is much cheaper than the library's call, which goes by the dispatcher.
inline Tensor made_contiguous(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

// An optional argument's tensor, contiguous, with a pointer that is null where there is none.
template <typename T>
struct OptionalData {
  std::optional<Tensor> tensor;
  const T* data;

  explicit OptionalData(const std::optional<Tensor>& given)
      : tensor(given ? std::optional(made_contiguous(*given)) : std::nullopt),
        data(tensor ? data_of<T>(*tensor) : nullptr) {}
  const T* at(int64_t offset) const { return data == nullptr ? nullptr : data + offset; }
};

}  // namespace softrank

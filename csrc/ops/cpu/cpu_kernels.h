// The table of CPU kernels: one instance per instruction set, chosen once at run time.
#pragma once

#include "row_kernels.h"
#include "transformer.h"

namespace softrank {

struct CpuKernels {
  const char* capability;
  // A checksum of bytes that a change in one 32-bit word always changes.
  uint64_t (*checksum)(const void* data, int64_t bytes);
  RowKernels<float> float_rows;
  RowKernels<double> double_rows;
  TransformerKernels<float> float_transformer;
  TransformerKernels<double> double_transformer;
};

const CpuKernels& cpu_kernels();

template <typename T>
const RowKernels<T>& row_kernels();
template <>
inline const RowKernels<float>& row_kernels<float>() {
  return cpu_kernels().float_rows;
}
template <>
inline const RowKernels<double>& row_kernels<double>() {
  return cpu_kernels().double_rows;
}

template <typename T>
const TransformerKernels<T>& transformer_kernels();
template <>
inline const TransformerKernels<float>& transformer_kernels<float>() {
  return cpu_kernels().float_transformer;
}
template <>
inline const TransformerKernels<double>& transformer_kernels<double>() {
  return cpu_kernels().double_transformer;
}

}  // namespace softrank

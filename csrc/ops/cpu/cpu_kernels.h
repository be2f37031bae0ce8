// The table of CPU kernels: one instance per instruction set, chosen once at run time.
#pragma once

#include "decoder.h"
#include "row_kernels.h"

namespace softrank {

struct CpuKernels {
  const char* capability;
  RowKernels<float> float_rows;
  RowKernels<double> double_rows;
  DecoderKernels<float> float_decoder;
  DecoderKernels<double> double_decoder;
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
const DecoderKernels<T>& decoder_kernels();
template <>
inline const DecoderKernels<float>& decoder_kernels<float>() {
  return cpu_kernels().float_decoder;
}
template <>
inline const DecoderKernels<double>& decoder_kernels<double>() {
  return cpu_kernels().double_decoder;
}

}  // namespace softrank

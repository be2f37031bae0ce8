// What each instruction set's files offer: they fill their part of the kernel table.
#pragma once

namespace softrank {

struct CpuKernels;

#define SOFTRANK_DECLARE_ISA(isa)                    \
  namespace isa {                                    \
  void add_row_kernels(CpuKernels& kernels);         \
  void add_random_kernels(CpuKernels& kernels);      \
  void add_transformer_kernels(CpuKernels& kernels); \
  }
SOFTRANK_DECLARE_ISA(baseline)
SOFTRANK_DECLARE_ISA(avx2)
SOFTRANK_DECLARE_ISA(avx512)
#undef SOFTRANK_DECLARE_ISA

}  // namespace softrank

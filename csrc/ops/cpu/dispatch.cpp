// Chooses the instruction set once: the best that the processor has, or what SOFTRANK_CPU_CAPABILITY names.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cpu_kernels.h"
#include "isa_kernels.h"

namespace softrank {
namespace {

#define SOFTRANK_USE_ISA(isa)              \
  do {                                     \
    kernels.capability = #isa;             \
    isa::add_row_kernels(kernels);         \
    isa::add_random_kernels(kernels);      \
    isa::add_transformer_kernels(kernels); \
  } while (0)

CpuKernels choose_kernels() {
  CpuKernels kernels{};
  const char* variable = std::getenv("SOFTRANK_CPU_CAPABILITY");
  const std::string wanted = variable == nullptr ? "" : variable;
  bool is_known = wanted.empty() || wanted == "baseline";
#if defined(SOFTRANK_X86)
  is_known = is_known || wanted == "avx2" || wanted == "avx512";
  if (!is_known) {
    throw std::runtime_error("SOFTRANK_CPU_CAPABILITY must be baseline, avx2 or avx512, got " + wanted);
  }
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if ((wanted == "avx2" && !has_avx2) || (wanted == "avx512" && !has_avx512)) {
    throw std::runtime_error("SOFTRANK_CPU_CAPABILITY asks for " + wanted + ", which this processor lacks");
  }
  if (has_avx512 && (wanted.empty() || wanted == "avx512")) {
    SOFTRANK_USE_ISA(avx512);
    return kernels;
  }
  if (has_avx2 && (wanted.empty() || wanted == "avx2")) {
    SOFTRANK_USE_ISA(avx2);
    return kernels;
  }
#else
  if (!is_known) throw std::runtime_error("SOFTRANK_CPU_CAPABILITY must be baseline here, got " + wanted);
#endif
  SOFTRANK_USE_ISA(baseline);
  return kernels;
}

}  // namespace

const CpuKernels& cpu_kernels() {
  static const CpuKernels kernels = choose_kernels();
  return kernels;
}

}  // namespace softrank

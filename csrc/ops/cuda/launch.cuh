// One way to launch a kernel, for all of them: nothing for no blocks, and an error that names the kernel.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace softrank {

inline void check_cuda(const char* name, cudaError_t error) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(name) + ": CUDA failed: " + cudaGetErrorString(error));
}

template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads, int64_t shared_bytes,
            void* stream, Arguments... arguments) {
  if (blocks == 0) return;
  if (blocks > INT32_MAX) {
    throw std::runtime_error(std::string(name) + ": the input is too large, it takes " + std::to_string(blocks) +
                             " CUDA blocks");
  }
  if (shared_bytes > 48 * 1024) {  // more has to be asked for
    check_cuda(name, cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)));
  }
  kernel<<<unsigned(blocks), threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(Parameters(arguments)...);
  // Torch's own launch check is missing from CPU builds of torch, and this library must load beside them too.
  check_cuda(name, cudaGetLastError());
}

}  // namespace softrank

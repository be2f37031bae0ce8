// A device guard that does nothing, for torch without CUDA: tensors that claim to be on a GPU need one in backward.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace c10::impl {

C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>)

}  // namespace c10::impl

// What this build is, as JSON: the op `build_facts`. CMake writes the header.
#include <string>

#include "../tensors.h"
#include "softrank_build.h"

namespace softrank {
namespace {

std::string build_facts() { return SOFTRANK_BUILD_FACTS; }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(softrank_ext, BackendSelect, m) { m.impl("build_facts", TORCH_BOX(&build_facts)); }

}  // namespace softrank

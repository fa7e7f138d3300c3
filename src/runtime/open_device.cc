// Opens a device by name: the one place, with ops/op_list.inc, that knows which backends this binary has.
#include "runtime/open_device.h"

#include "backend/cpu/cpu_device.h"
#include "base/error.h"

namespace trireme::runtime {

std::unique_ptr<tensor::Device> open_device(std::string_view name) {
  if (name == "cpu") return std::make_unique<cpu::CpuDevice>();
  base::fail_unsupported("no device '", name, "' in this build; known: cpu");
}

}  // namespace trireme::runtime

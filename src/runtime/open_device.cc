// Opens a device by name: the one place, with ops/op_list.inc, that knows which backends this binary has.
#include "runtime/open_device.h"

#include "backend/cpu/cpu_device.h"
#include "base/error.h"
#if TRIREME_CUDA
#include "backend/cuda/cuda_device.h"
#endif

namespace trireme::runtime {
namespace {

void add_gpus(std::vector<DeviceLine>& lines) {
#if TRIREME_CUDA
  try {
    for (const cuda::GpuInfo& gpu : cuda::list_gpus()) {
      lines.push_back({base::concat("cuda:", gpu.ordinal), cuda::CudaDevice(gpu.ordinal).describe()});
    }
  } catch (const base::Error& e) {
    lines.push_back({"cuda", e.message(), false});
  }
#else
  lines.push_back({"cuda", "this program was built without the CUDA backend (./dev build cuda)", false});
#endif
}

}  // namespace

std::vector<DeviceLine> list_devices() {
  std::vector<DeviceLine> lines{{"cpu", cpu::CpuDevice().describe()}};
  add_gpus(lines);
  return lines;
}

std::unique_ptr<tensor::Device> open_device(std::string_view name) {
  if (name == "cpu") return std::make_unique<cpu::CpuDevice>();
  base::fail_unsupported("no device '", name, "' in this build; known: cpu");
}

}  // namespace trireme::runtime

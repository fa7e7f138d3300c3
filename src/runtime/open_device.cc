// Opens a device by name: the one place that knows which backends there are.
#include "runtime/open_device.h"

#include <charconv>

#include "backend/cpu/cpu_device.h"
#include "backend/cuda/cuda_device.h"
#include "base/error.h"

namespace trireme::runtime {
namespace {

void add_gpus(std::vector<DeviceLine>& lines) {
  try {
    for (const cuda::GpuInfo& gpu : cuda::list_gpus()) {
      lines.push_back({base::concat("cuda:", gpu.ordinal), cuda::open_gpu(gpu.ordinal)->describe()});
    }
  } catch (const base::Error& e) {
    lines.push_back({"cuda", e.message(), false});
  }
  if (!cuda::has_toolkit()) lines.push_back({"emulated", cuda::open_emulated()->describe()});
}

}  // namespace

std::vector<DeviceLine> list_devices() {
  std::vector<DeviceLine> lines{{"cpu", cpu::CpuDevice().describe()}};
  add_gpus(lines);
  return lines;
}

namespace {

/// The ordinal in "cuda:N", 0 for "cuda". Throws invalid_argument for every other name.
int ordinal_of(std::string_view name) {
  if (name == "cuda") return 0;
  if (name.starts_with("cuda:")) {
    const std::string_view digits = name.substr(5);
    int ordinal = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
    if (error == std::errc() && end == digits.data() + digits.size() && ordinal >= 0) return ordinal;
  }
  base::fail_invalid("no device '", name,
                     "'; there are cpu, cuda, cuda:N and emulated (see trireme devices)");
}

}  // namespace

std::unique_ptr<tensor::Device> open_device(std::string_view name) {
  if (name == "cpu") return std::make_unique<cpu::CpuDevice>();
  if (name == "emulated") return cuda::open_emulated();
  return cuda::open_gpu(ordinal_of(name));
}

std::string device_of_rank(const std::string& name, int rank) {
  if (name != "cuda") return name;
  return base::concat("cuda:", static_cast<size_t>(rank) % cuda::list_gpus().size());
}

tensor::DeviceKind kind_of_device(std::string_view name) {
  if (name == "cpu") return tensor::DeviceKind::cpu;
  if (name != "emulated") ordinal_of(name);
  return tensor::DeviceKind::cuda;
}

}  // namespace trireme::runtime

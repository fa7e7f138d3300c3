// Which device tests run on that run on any: TRIREME_TEST_DEVICE (cpu, emulated, cuda:0), else the CPU.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "backend/cuda/device/cuda_device.h"

namespace trireme::tests {

inline std::string device_under_test() {
  const char* name = std::getenv("TRIREME_TEST_DEVICE");
  return name != nullptr && *name != '\0' ? name : "cpu";
}

/// The device that runs CUDA kernels here: a GPU in builds with the toolkit, the emulated one in others.
/// Nothing where there is no GPU; then the test skips: GTEST_SKIP() << tests::kNoGpu.
inline std::optional<std::string> cuda_device() {
  if (!cuda::has_toolkit()) return "emulated";
  try {
    cuda::list_gpus();
    return "cuda:0";
  } catch (const base::Error&) {
    return std::nullopt;
  }
}
inline constexpr const char* kNoGpu = "built for GPUs, and there is none here";

}  // namespace trireme::tests

// Opens a device by name: the one place that knows which backends there are.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/device.h"

namespace trireme::runtime {

/// A device this program sees, or why it sees none of its kind.
struct DeviceLine {
  std::string name;  ///< "cpu", "cuda:0"; "cuda" where there is none
  std::string text;  ///< what it is
  bool is_there = true;
};
std::vector<DeviceLine> list_devices();

/// "cpu", "cuda" or "cuda:N" for a GPU, "emulated" for the device that runs CUDA kernels on the host. Throws
/// invalid_argument for another name, unavailable where there is no such GPU (and says why), unsupported for
/// what this build is without.
std::unique_ptr<tensor::Device> open_device(std::string_view name);
/// The name of the device of one of several ranks: of "cuda" the GPUs here in turn, else the name as it is.
std::string device_of_rank(const std::string& name, int rank);
/// Which kernels programs for the device of that name have; it need not be there. Throws invalid_argument
/// for a name that open_device() does not know.
tensor::DeviceKind kind_of_device(std::string_view name);

}  // namespace trireme::runtime

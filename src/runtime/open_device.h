// Opens a device by name: the one place, with ops/op_list.inc, that knows which backends this binary has.
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

/// "cpu". Programs do not run on GPUs yet: the backend's memory, streams and kernels are built and tested,
/// the operators do not use them. Throws unsupported for a backend this binary was built without.
std::unique_ptr<tensor::Device> open_device(std::string_view name);

}  // namespace trireme::runtime

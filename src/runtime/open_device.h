// Opens a device by name: the one place, with ops/op_list.inc, that knows which backends this binary has.
#pragma once

#include <memory>
#include <string_view>

#include "tensor/device.h"

namespace trireme::runtime {

/// "cpu" so far.
/// Throws unsupported for a backend this binary was built without.
std::unique_ptr<tensor::Device> open_device(std::string_view name);

}  // namespace trireme::runtime

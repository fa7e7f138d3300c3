// Kernels of conv_nhwc for weights that are computed or change every step: packed inside the run.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> conv_nhwc_live_kernels();

}  // namespace trireme::ops

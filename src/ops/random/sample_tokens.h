// sample_tokens: the weight of a token and the draw, as the CPU and the device compute them.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

/// Columns of the settings [rows, 4].
enum SampleSetting : int64_t { kTemperature, kTopK, kTopP, kMinP, kSampleSettings };

std::vector<ir::Kernel> sample_tokens_cpu_kernels();

}  // namespace trireme::ops

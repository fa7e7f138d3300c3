// sample_tokens, what changes its logits and what feeds tokens from step to step: columns of the settings,
// kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

/// Columns of the settings [rows, 4], or [rows, 7] where penalties are taken.
enum SampleSetting : int64_t {
  kTemperature,
  kTopK,
  kTopP,
  kMinP,
  kPlainSettings,
  kRepetition = kPlainSettings,
  kPresence,
  kFrequency,
  kSampleSettings
};

std::vector<ir::Kernel> sample_tokens_cpu_kernels();
std::vector<ir::Kernel> edit_logits_cpu_kernels();
std::vector<ir::Kernel> count_tokens_cpu_kernels();
std::vector<ir::Kernel> take_tokens_cpu_kernels();

}  // namespace trireme::ops

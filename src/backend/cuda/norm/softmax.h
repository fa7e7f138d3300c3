// Launchers of softmax and its gradient.
#pragma once

#include <cstdint>

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// See softmax_kernels.h. [rows, n, inner], the first 16-byte aligned; along n. `log`: the logarithm.
struct SoftmaxArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t rows = 0, n = 0, inner = 1;
  bool log = false;
};
void softmax(On on, const SoftmaxArgs& args);
/// dx in y from dy and the result, which is x.
void softmax_grad(On on, const SoftmaxArgs& args, const void* dy);

}  // namespace trireme::cuda

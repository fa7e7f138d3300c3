// Launcher of the reduction over ranks, for comm/nccl.
#pragma once

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// See tree_kernels.h. `on.dtype` f32, f64, i64, f16 or bf16. Buffers may begin at any byte, as those of a
/// collective may.
struct TreeArgs {
  const void* pieces = nullptr;  ///< [ranks, stride] elements
  const void* own = nullptr;     ///< [n], of rank `rank`, whose place in pieces is not read
  void* out = nullptr;           ///< [n]; may be own
  int64_t stride = 0, n = 0;
  int rank = 0, ranks = 1;
  bool maximum = false;  ///< else the sum
};
void tree_reduce(On on, const TreeArgs& args);

}  // namespace trireme::cuda

// Launcher of the selection of the first of an order.
#pragma once

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// y, places [outer, k, inner]: the k largest (smallest) of x [outer, n, inner] along n, in order; equal ones
/// by place, NaN counts as the largest. f32, f16, bf16, i32; n below 2^32. `places` (i64) may be null.
struct TopKArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t* places = nullptr;
  int64_t outer = 1, n = 0, inner = 1, k = 0;
  bool is_largest = true;
};
void top_k(On on, const TopKArgs& args);

/// The same by one sort of all rows together, for many that are asked for. outer n inner below 2^31.
int64_t top_k_sorted_workspace_bytes(const TopKArgs& args);
void top_k_sorted(On on, const TopKArgs& args, void* workspace);

}  // namespace trireme::cuda

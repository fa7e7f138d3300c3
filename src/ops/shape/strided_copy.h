// Copies between dense tensors along arbitrary steps: the engine of transpose, slice, expand, tile, concat
// and split.
#pragma once

#include <cstddef>
#include <vector>

#include "base/threads/thread_pool.h"
#include "ir/kernel.h"
#include "ops/elementwise/strided_loop.h"

namespace trireme::ops {

/// out[out_base + sum i_d out_steps_d] = in[in_base + sum i_d in_steps_d] for every index i inside `extent`;
/// in elements.
struct CopyPlan {
  tensor::Dims extent;
  std::vector<int64_t> in_steps, out_steps;
  int64_t in_base = 0, out_base = 0;
};

/// A copy from operand `in` to result `out` of a node.
struct CopyJob {
  CopyPlan plan;
  size_t in = 0, out = 0;
};

/// Binds copies to a node; run performs them in order. 2- and 4-bit elements are handled for one operand, one
/// result.
ir::BoundKernel bind_copies(const ir::NodeView& node, const std::vector<CopyJob>& jobs);

/// Where a body for whole-byte elements finds its operands and results.
struct ByteArgs {
  const std::byte* const* in;
  std::byte* const* out;
  base::ThreadPool& pool;
};
using ByteBody = std::function<void(const ByteArgs&)>;

/// Makes a kernel of a body that moves elements without looking at them. Packed 2- and 4-bit elements (of
/// operands with result 0's type) are unpacked to one byte each in the workspace before, and packed after.
ir::BoundKernel bind_bytes(const ir::NodeView& node, ByteBody body);

/// Bytes of an element as a ByteBody sees it: 1 for packed elements.
inline int64_t element_bytes_of(tensor::DType t) { return std::max(1, tensor::bits_of(t) / 8); }

/// Kernel "strided": plans by `plan`, refused with the reason `needs` gives (if any).
ir::Kernel copy_kernel(std::function<std::vector<CopyJob>(const ir::NodeView&)> plan,
                       std::function<ir::Refusal(const ir::NodeView&)> needs = {});

/// Refusal unless the values of the operands listed are known (or absent).
std::function<ir::Refusal(const ir::NodeView&)> needs_values(std::vector<size_t> operands);

}  // namespace trireme::ops

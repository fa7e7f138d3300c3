// Copies between dense tensors along arbitrary steps: the engine of transpose, slice, expand, tile, concat
// and split.
#pragma once

#include <cstddef>
#include <vector>

#include "base/thread_pool.h"
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

/// A CopyPlan made ready: dimensions merged, inner loop chosen. Elements are 1, 2, 4, 8 or 16 bytes.
class StridedCopy {
 public:
  StridedCopy(const CopyPlan& whole, int64_t element_bytes);
  void run(const std::byte* in, std::byte* out, base::ThreadPool& pool) const;

 private:
  StridedCopy(CopyPlan plan, int64_t element_bytes, int);
  template <class Word>
  void copy_rows(const Word* in, Word* out, base::ThreadPool& pool) const;
  template <class Word>
  void copy_tiles(const Word* in, Word* out, base::ThreadPool& pool) const;

  int64_t element_bytes_;
  int64_t in_base_, out_base_;
  // When the output's innermost dimension is not the input's, tiles of both are moved: `across` is the
  // dimension the input walks densely, taken out of the loop nest.
  bool is_tiled_ = false;
  int64_t across_extent_ = 1, across_out_ = 0;
  StridedLoop loop_;  // operand 0: input, operand 1: output
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

// Launchers of reductions over any axes, of the place of the largest element, and of running sums.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/device/on.h"
#include "tensor/shape.h"

namespace trireme::cuda {

enum class ReduceJoin : uint8_t { sum, product, max, min };
enum class ReduceTerm : uint8_t { plain, absolute, square };
enum class ReduceFinish : uint8_t { plain, mean, root, log };

inline constexpr size_t kReduceRank = 6;  ///< of the kept and of the reduced dimensions, merged

/// A reduction of one shape. Its order of sums follows from the shape.
struct ReducePlan {
  ReduceJoin join = ReduceJoin::sum;
  ReduceTerm term = ReduceTerm::plain;
  ReduceFinish finish = ReduceFinish::plain;
  std::vector<int64_t> kept, gone;              ///< extents, adjacent dimensions merged
  std::vector<int64_t> kept_steps, gone_steps;  ///< in x
  int64_t results = 1, terms = 1;
  bool by_columns = false;  ///< neighbouring results lie side by side in x
  int64_t columns = 1;      ///< of which there are so many
  int64_t pieces = 1;       ///< of the terms of a result, joined in a second stage
};
/// reduced[d]: dimension d goes.
ReducePlan plan_reduce(const tensor::Dims& dims, const std::vector<bool>& reduced);
/// nullopt if the device takes the plan over elements of `dtype`: f32, f16, bf16, f64, i32, i64.
std::optional<std::string> refuse_reduce(const ReducePlan& plan, tensor::DType dtype);
int64_t reduce_workspace_bytes(const ReducePlan& plan, tensor::DType dtype);
void reduce(On on, const ReducePlan& plan, const void* x, void* y, void* workspace);

/// x [outer, n, inner] along n.
struct AlongArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t outer = 1, n = 1, inner = 1;
};
/// y [outer, inner] of i64: the place of the largest (smallest) element, the first or last of equal ones; NaN
/// before numbers. Elements as of reduce().
void arg_extreme(On on, const AlongArgs& args, bool is_max, bool takes_last);
/// y like x: running sums or products, in f64 or i64.
struct ScanRule {
  bool is_product = false, is_exclusive = false, is_reverse = false;
};
void scan(On on, const AlongArgs& args, const ScanRule& rule);

}  // namespace trireme::cuda

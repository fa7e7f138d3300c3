// Builds nests of loops: drops extents of 1, merges dimensions, separates the innermost one.
#include "ops/elementwise/strided_loop.h"

namespace trireme::ops {

std::vector<int64_t> dense_steps(const tensor::Dims& dims) {
  std::vector<int64_t> steps(dims.size());
  int64_t step = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    steps[d] = step;
    step *= dims[d];
  }
  return steps;
}

std::vector<int64_t> broadcast_steps(const tensor::Dims& dims, const tensor::Dims& out) {
  const std::vector<int64_t> dense = dense_steps(dims);
  const size_t lead = out.size() - dims.size();
  std::vector<int64_t> steps(out.size(), 0);
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] != 1) steps[lead + d] = dense[d];
  }
  return steps;
}

StridedLoop::StridedLoop(const tensor::Dims& extent, const std::vector<std::vector<int64_t>>& steps)
    : operands_(steps.size()), count_(tensor::element_count(extent)) {
  base::check(operands_ <= kMaxOperands, "too many operands in one loop: ", operands_);
  tensor::Dims merged;
  std::vector<int64_t> merged_steps;  // [merged dims, operands]
  for (size_t d = 0; d < extent.size(); ++d) {
    if (extent[d] == 1) continue;
    bool joins = !merged.empty();
    for (size_t k = 0; joins && k < operands_; ++k) {
      joins = merged_steps[(merged.size() - 1) * operands_ + k] == steps[k][d] * extent[d];
    }
    if (joins) {
      merged.back() *= extent[d];
      for (size_t k = 0; k < operands_; ++k) merged_steps[(merged.size() - 1) * operands_ + k] = steps[k][d];
    } else {
      merged.push_back(extent[d]);
      for (size_t k = 0; k < operands_; ++k) merged_steps.push_back(steps[k][d]);
    }
  }
  if (merged.empty()) {
    merged.push_back(1);
    merged_steps.assign(operands_, 1);
  }
  if (merged.size() > kMaxRank) base::fail_unsupported("loops over more than 16 dimensions: ", merged.size());
  inner_ = merged.back();
  merged.pop_back();
  outer_ = std::move(merged);
  for (int64_t e : outer_) rows_ *= e;
  inner_steps_.assign(merged_steps.end() - static_cast<int64_t>(operands_), merged_steps.end());
  merged_steps.resize(merged_steps.size() - operands_);
  outer_steps_ = std::move(merged_steps);
}

StridedLoop StridedLoop::broadcast(const tensor::Dims& out, std::span<const tensor::Dims> in) {
  std::vector<std::vector<int64_t>> steps;
  for (const tensor::Dims& dims : in) steps.push_back(broadcast_steps(dims, out));
  return StridedLoop(out, steps);
}

StridedLoop::Cursor::Cursor(const StridedLoop& loop, int64_t first_row) : row(first_row) {
  for (size_t k = 0; k < loop.operands_; ++k) offset[k] = 0;
  for (size_t d = loop.outer_.size(); d-- > 0;) {
    index[d] = first_row % loop.outer_[d];
    first_row /= loop.outer_[d];
    for (size_t k = 0; k < loop.operands_; ++k)
      offset[k] += index[d] * loop.outer_steps_[d * loop.operands_ + k];
  }
}

void StridedLoop::Cursor::next(const StridedLoop& loop) {
  ++row;
  for (size_t d = loop.outer_.size(); d-- > 0;) {
    const int64_t* steps = &loop.outer_steps_[d * loop.operands_];
    ++index[d];
    for (size_t k = 0; k < loop.operands_; ++k) offset[k] += steps[k];
    if (index[d] < loop.outer_[d]) return;
    for (size_t k = 0; k < loop.operands_; ++k) offset[k] -= steps[k] * loop.outer_[d];
    index[d] = 0;
  }
}

}  // namespace trireme::ops

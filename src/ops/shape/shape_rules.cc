// Type rules of the shape family.
#include "ops/shape/shape_rules.h"

#include <algorithm>

namespace trireme::ops {

std::optional<std::vector<int64_t>> known_ints(const ir::NodeView& node, size_t i) {
  if (!node.present(i) || node.value(i) == nullptr) return std::nullopt;
  return node.value(i)->to_ints();
}

std::optional<int64_t> length_of(const ir::NodeView& node, size_t i) {
  if (!node.present(i) || !node.in[i].shape.has_rank()) return std::nullopt;
  if (node.in[i].shape.rank() == 0) return 1;
  const tensor::Dim& d = node.in[i].shape[0];
  return d.is_static() ? std::optional(d.value()) : std::nullopt;
}

tensor::Dim times(const tensor::Dim& dim, int64_t factor) {
  if (!dim.is_static()) return factor == 1 ? dim : tensor::Dim::unknown();
  int64_t product = 0;
  if (__builtin_mul_overflow(dim.value(), factor, &product) || product < 0)
    base::fail_invalid("an extent of ", dim.value(), " cannot grow ", factor, " times");
  return product;
}

tensor::Dim plus(const tensor::Dim& dim, int64_t amount) {
  if (!dim.is_static()) return amount == 0 ? dim : tensor::Dim::unknown();
  int64_t sum = 0;
  if (__builtin_add_overflow(dim.value(), amount, &sum) || sum < 0)
    base::fail_invalid("an extent of ", dim.value(), " cannot change by ", amount);
  return sum;
}

std::vector<size_t> normal_axes(const std::vector<int64_t>& axes, size_t rank) {
  std::vector<size_t> out;
  for (int64_t a : axes) out.push_back(ir::normal_axis(a, rank));
  std::sort(out.begin(), out.end());
  base::require(std::adjacent_find(out.begin(), out.end()) == out.end(), "an axis is named twice");
  return out;
}

SliceRange slice_range(int64_t start, int64_t end, int64_t step, int64_t extent) {
  base::require(step != 0, "a slice cannot have a step of 0");
  // Sentinels such as INT64_MAX and INT64_MIN are clamped like any other value; adding the extent cannot
  // overflow.
  if (start < 0) start += extent;
  if (end < 0) end += extent;
  if (step > 0) {
    start = std::clamp<int64_t>(start, 0, extent);
    end = std::clamp<int64_t>(end, 0, extent);
    return {start, end > start ? (end - start - 1) / step + 1 : 0};
  }
  start = std::clamp<int64_t>(start, -1, extent - 1);
  end = std::clamp<int64_t>(end, -1, extent - 1);
  const uint64_t stride = 0 - static_cast<uint64_t>(step);  // |INT64_MIN| fits
  return {start, start > end ? static_cast<int64_t>(static_cast<uint64_t>(start - end - 1) / stride) + 1 : 0};
}

}  // namespace trireme::ops

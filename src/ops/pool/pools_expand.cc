// max_unpool and global_lp_pool in simpler ops.
#include "ops/pool/pools_expand.h"

#include <algorithm>

namespace trireme::ops {

using tensor::Dims;

std::vector<ValueId> expand_max_unpool(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  GradBuilder g(graph, node, {});
  const Dims x = g.dims(g.in(0)), y = g.dims(node.out[0]);
  Dims counted = y;
  if (g.has(2)) {
    // The indices refer to the smaller tensor that the attributes describe.
    const std::vector<int64_t> kernel = g.attrs().get_ints("kernel_shape"),
                               strides = g.attrs().get_ints("strides"), pads = g.attrs().get_ints("pads");
    for (size_t i = 0; i + 2 < x.size(); ++i) {
      const int64_t pad = pads.empty() ? 0 : pads[i] + pads[x.size() - 2 + i];
      const int64_t stride = strides.empty() ? 1 : strides[i];
      counted[i + 2] = std::max<int64_t>(1, (x[i + 2] - 1) * stride + kernel[i] - pad);
    }
  }
  const int64_t n = tensor::element_count(x), all = tensor::element_count(y);
  ValueId at = g.reshape(g.in(1), {n});
  if (counted != y) {
    // Decodes the indices with the extents of that tensor and encodes them with those of the result.
    ValueId rest = at, place = ir::kNoValue;
    int64_t stride = 1;
    for (size_t d = y.size(); d-- > 0;) {
      const ValueId digit = g.op("mod", {rest, g.scalar(double(counted[d]), rest)});
      const ValueId term = g.scaled(digit, double(stride));
      place = place == ir::kNoValue ? term : g.add(place, term);
      rest = g.div(rest, g.scalar(double(counted[d]), rest));
      stride *= y[d];
    }
    at = place;
  }
  const ValueId zeros = g.expand(g.scalar(0, g.in(0)), {all});
  const ValueId flat = g.op("scatter_elements", {zeros, at, g.reshape(g.in(0), {n})}, {{"axis", int64_t{0}}});
  return {g.reshape(flat, y)};
}

std::vector<ValueId> expand_global_lp_pool(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;
  GradBuilder g(graph, node, {});
  const int64_t p = g.attrs().get_int("p", 2);
  std::vector<int64_t> axes;
  for (size_t d = 2; d < g.dims(g.in(0)).size(); ++d) axes.push_back(static_cast<int64_t>(d));
  const ir::Attrs keep{{"keepdims", int64_t{1}}};
  if (p == 1 || p == 2) return {g.op(p == 1 ? "reduce_l1" : "reduce_l2", {g.in(0), g.ints(axes)}, keep)};
  const ValueId x = g.op("abs", {g.in(0)});
  const ValueId sum = g.reduce_sum(g.op("pow", {x, g.scalar(double(p), x)}), axes, true);
  return {g.op("pow", {sum, g.scalar(1.0 / double(p), sum)})};
}

}  // namespace trireme::ops

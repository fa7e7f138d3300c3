// Copy plans of the ops that move elements: extents and steps of each copy.
#include "ops/shape/copy_ops.h"
#include "ops/shape/shape_rules.h"

namespace trireme::ops {
namespace {

/// Views x as `split` extents in row-major order; the result has these in the order `perm`.
CopyPlan permuted(const tensor::Dims& split, const std::vector<size_t>& perm) {
  const std::vector<int64_t> steps = dense_steps(split);
  CopyPlan plan;
  for (size_t p : perm) {
    plan.extent.push_back(split[p]);
    plan.in_steps.push_back(steps[p]);
  }
  plan.out_steps = dense_steps(plan.extent);
  return plan;
}

}  // namespace

std::vector<CopyJob> plan_transpose(const ir::NodeView& node) {
  const tensor::Dims dims = node.in_dims(0);
  const std::vector<int64_t> given = node.attrs.get_ints("perm");
  std::vector<size_t> perm;
  for (size_t i = 0; i < dims.size(); ++i) {
    perm.push_back(given.empty() ? dims.size() - 1 - i : static_cast<size_t>(given[i]));
  }
  return {{permuted(dims, perm)}};
}

std::vector<CopyJob> plan_expand(const ir::NodeView& node) {
  const tensor::Dims out = node.out_dims(0);
  return {{{out, broadcast_steps(node.in_dims(0), out), dense_steps(out)}}};
}

std::vector<CopyJob> plan_tile(const ir::NodeView& node) {
  const tensor::Dims in = node.in_dims(0), out = node.out_dims(0);
  const std::vector<int64_t> in_steps = dense_steps(in), out_steps = dense_steps(out);
  CopyPlan plan;
  for (size_t d = 0; d < in.size(); ++d) {
    const int64_t repeats = in[d] == 0 ? 0 : out[d] / in[d];
    plan.extent.insert(plan.extent.end(), {repeats, in[d]});
    plan.in_steps.insert(plan.in_steps.end(), {0, in_steps[d]});
    plan.out_steps.insert(plan.out_steps.end(), {in[d] * out_steps[d], out_steps[d]});
  }
  return {{plan}};
}

std::vector<CopyJob> plan_concat(const ir::NodeView& node) {
  const tensor::Dims out = node.out_dims(0);
  const size_t axis = ir::normal_axis(node.attrs.need_int("axis"), out.size());
  const std::vector<int64_t> out_steps = dense_steps(out);
  std::vector<CopyJob> jobs;
  int64_t at = 0;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const tensor::Dims in = node.in_dims(i);
    if (tensor::element_count(in) > 0)
      jobs.push_back({{in, dense_steps(in), out_steps, 0, at * out_steps[axis]}, i, 0});
    at += in[axis];
  }
  return jobs;
}

std::vector<CopyJob> plan_split(const ir::NodeView& node) {
  const tensor::Dims in = node.in_dims(0);
  const size_t axis = ir::normal_axis(node.attrs.get_int("axis", 0), in.size());
  const std::vector<int64_t> in_steps = dense_steps(in);
  std::vector<CopyJob> jobs;
  int64_t at = 0;
  for (size_t i = 0; i < node.out.size(); ++i) {
    const tensor::Dims out = node.out_dims(i);
    if (tensor::element_count(out) > 0)
      jobs.push_back({{out, in_steps, dense_steps(out), at * in_steps[axis], 0}, 0, i});
    at += out[axis];
  }
  return jobs;
}

namespace {

/// The elements of x [in] that a slice node with result [out] selects: y is dense, x is read with the slice's
/// steps.
CopyPlan sliced(const ir::NodeView& node, const tensor::Dims& in, const tensor::Dims& out) {
  CopyPlan plan{out, dense_steps(in), dense_steps(out)};
  const auto starts = *known_ints(node, 1), ends = *known_ints(node, 2);
  const auto axes = known_ints(node, 3), steps = known_ints(node, 4);
  for (size_t i = 0; i < starts.size(); ++i) {
    const size_t d = axes ? ir::normal_axis((*axes)[i], in.size()) : i;
    const int64_t step = steps ? (*steps)[i] : 1;
    const SliceRange range = slice_range(starts[i], ends[i], step, in[d]);
    plan.in_base += range.start * plan.in_steps[d];
    // With fewer than two elements the step is irrelevant, and INT64_MIN times the extent would overflow.
    plan.in_steps[d] = range.count > 1 ? plan.in_steps[d] * step : 0;
  }
  return plan;
}

}  // namespace

std::vector<CopyJob> plan_slice(const ir::NodeView& node) {
  const tensor::Dims out = node.out_dims(0);
  if (tensor::element_count(out) == 0) return {};
  return {{sliced(node, node.in_dims(0), out)}};
}

std::vector<CopyJob> plan_slice_grad(const ir::NodeView& node) {
  const tensor::Dims dy = node.in_dims(0);
  if (tensor::element_count(dy) == 0) return {};
  const CopyPlan forward = sliced(node, node.out_dims(0), dy);
  return {{{dy, forward.out_steps, forward.in_steps, 0, forward.in_base}}};
}

std::vector<CopyJob> plan_depth_to_space(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(0);  // [n, c, h, w]
  const int64_t b = node.attrs.need_int("blocksize");
  if (node.attrs.get_string("mode", "DCR") == "CRD") {
    return {{permuted({x[0], x[1] / (b * b), b, b, x[2], x[3]}, {0, 1, 4, 2, 5, 3})}};
  }
  return {{permuted({x[0], b, b, x[1] / (b * b), x[2], x[3]}, {0, 3, 4, 1, 5, 2})}};
}

std::vector<CopyJob> plan_space_to_depth(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(0);  // [n, c, h, w]
  const int64_t b = node.attrs.need_int("blocksize");
  return {{permuted({x[0], x[1], x[2] / b, b, x[3] / b, b}, {0, 3, 5, 1, 2, 4})}};
}

}  // namespace trireme::ops

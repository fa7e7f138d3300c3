// group_norm_nhwc: group norm of channels-last images: schema, gradient, expansion into plain nodes.
#include <algorithm>
#include <numeric>

#include "ops/grad.h"
#include "ops/norm/norm_cuts.h"
#include "ops/norm/norm_rules.h"
#include "ops/precision_rules.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

/// The permutations from [n, spatial..., c] to [n, c, spatial...] and back.
std::vector<int64_t> to_first(size_t rank) {
  std::vector<int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), int64_t{0});
  std::rotate(perm.begin() + 1, perm.end() - 1, perm.end());
  return perm;
}
std::vector<int64_t> to_last(size_t rank) {
  std::vector<int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), int64_t{0});
  std::rotate(perm.begin() + 1, perm.begin() + 2, perm.end());
  return perm;
}

std::vector<tensor::TensorType> infer(const ir::NodeView& n) {
  const tensor::Shape& x = n.in[0].shape;
  const int64_t groups = n.attrs.need_int("num_groups");
  base::require(groups >= 1, "num_groups ", groups, " is below 1");
  if (!x.has_rank()) return {n.in[0]};
  base::require(x.rank() >= 3, "channels-last group norm of ", x.to_string());
  if (!x[x.rank() - 1].is_static()) return {n.in[0]};
  const int64_t channels = x[x.rank() - 1].value();
  base::require(channels % groups == 0, channels, " channels in ", groups, " groups");
  for (size_t i : {1, 2}) {
    const auto given = n.in[i].shape.elements();
    base::require(!given || *given == channels, "operand ", i, " has ", given.value_or(0), " values for ",
                  channels, " channels");
  }
  return {n.in[0]};
}

ir::Cost group_norm_nhwc_cost(const ir::NodeView& n) {
  return {.flop = 6.0 * static_cast<double>(n.in[0].shape.elements().value_or(0)),
          .bytes = 2.0 * static_cast<double>(tensor::bytes_of(n.in[0]))};
}

/// group_norm over [n, c, ...] between two layout changes.
std::vector<ValueId> expand(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;
  GradBuilder g(graph, node, {});
  const size_t rank = g.dims(g.in(0)).size();
  const ValueId first = g.transpose(g.in(0), to_first(rank));
  return {g.transpose(g.op("group_norm", {first, g.in(1), g.in(2)}, g.attrs()), to_last(rank))};
}

/// The gradient of group_norm over [n, c, ...].
Gradients gradients(ir::Graph& graph, const ir::Node& given, std::span<const ValueId> out_grads) {
  ir::Node node = given;
  GradBuilder g(graph, given, out_grads);
  const size_t rank = g.dims(g.in(0)).size();
  const ValueId dy = g.transpose(g.grad(), to_first(rank));
  node.in[0] = g.transpose(g.in(0), to_first(rank));
  node.op = &table().need("group_norm");
  Gradients out = group_norm_gradient()(graph, node, std::vector<ValueId>{dy});
  if (out[0]) out[0] = GradBuilder(graph, node, {}).transpose(*out[0], to_last(rank));
  return out;
}

}  // namespace

ir::OpSchema group_norm_nhwc_schema() {
  return {.name = "group_norm_nhwc",
          .doc = "group_norm of x [n, spatial..., c]: statistics per image and group of channels",
          .precision = kStatistics,
          .cut = group_norm_nhwc_cut,
          .localise = localise_group_norm_nhwc,
          .min_in = 3,
          .max_in = 3,
          .attrs = {{"epsilon", "float", "added to the variance, default 1e-5"},
                    {"num_groups", "int", "groups of equal size"}},
          .infer = infer,
          .expand = expand,
          .cost = group_norm_nhwc_cost,
          .grad = gradients};
}

}  // namespace trireme::ops

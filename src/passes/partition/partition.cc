// The partition pass: cuts along one mesh axis after the other, then merges collectives over several axes.
#include "passes/partition/partition.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "ops/collective/parts.h"
#include "passes/partition/expert_parallel.h"
#include "passes/partition/partition_walk.h"
#include "passes/train/train.h"
#include "passes/partition/vocab_parallel.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

bool is_sum(const Node& node) {
  return node.op_name() == "all_reduce" && node.in.size() == 1 && node.attrs.get_string("op", "sum") == "sum";
}

/// Names of mesh axes in mesh order.
std::string joined_axes(const tensor::MeshShape& mesh, const std::string& a, const std::string& b) {
  std::vector<size_t> all = mesh.indices_of(a);
  for (size_t i : mesh.indices_of(b)) all.push_back(i);
  std::sort(all.begin(), all.end());
  std::string names;
  for (size_t i : all) names += (names.empty() ? "" : ",") + mesh.axes()[i].name;
  return names;
}

/// Merges a sum over one axis into the sum over another axis that alone reads it.
void join_sums(ir::Graph& graph, const std::vector<int>& coordinates) {
  const std::vector<std::vector<ir::NodeId>> readers = graph.uses();
  std::vector<char> is_output(graph.values().size(), 0);
  for (ValueId id : graph.outputs()) is_output[index(id)] = 1;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& outer = graph.node(ir::NodeId(static_cast<uint32_t>(n)));
    if (outer.op == nullptr || !is_sum(outer)) continue;
    const ValueId between = outer.in[0];
    const Node* inner = graph.producer(between);
    if (inner == nullptr || !is_sum(*inner) || readers[index(between)].size() != 1 ||
        is_output[index(between)] != 0)
      continue;
    const std::string axes =
        joined_axes(graph.mesh, inner->attrs.get_string("axes", ""), outer.attrs.get_string("axes", ""));
    ir::Attrs attrs = ops::group_attrs(graph.mesh, coordinates, axes);
    outer.attrs = attrs.set("op", std::string("sum"));
    graph.set_operand(ir::NodeId(static_cast<uint32_t>(n)), 0, inner->in[0]);
  }
  graph.sort();
}

/// Values that depend on the weight of the loss.
std::vector<char> backward_values(const ir::Graph& graph) {
  std::vector<char> is_backward(graph.values().size(), 0);
  for (ValueId id : graph.inputs()) is_backward[index(id)] = graph.value(id).name == kLossWeightInput;
  for (const Node& node : graph.nodes()) {
    const bool backward = std::any_of(node.in.begin(), node.in.end(), [&](ValueId id) {
      return id != ir::kNoValue && is_backward[index(id)] != 0;
    });
    for (ValueId id : node.out) {
      if (id != ir::kNoValue) is_backward[index(id)] = backward;
    }
  }
  return is_backward;
}

/// Sums of small gradients (of norms and biases under sequence parallelism) that are read only by updates and
/// outputs, grouped by mesh axes.
std::map<std::string, std::vector<ir::NodeId>> small_gradient_sums(const ir::Graph& graph) {
  const std::vector<char> is_backward = backward_values(graph);
  const std::vector<std::vector<ir::NodeId>> readers = graph.uses();
  std::map<std::string, std::vector<ir::NodeId>> by_axes;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (!is_sum(node) || is_backward[index(node.out[0])] == 0) continue;
    const auto& of = readers[index(node.out[0])];
    const bool ends = std::all_of(of.begin(), of.end(),
                                  [&](ir::NodeId id) { return graph.node(id).op->schema.updates_state(); });
    if (ends && tensor::bytes_of(graph.type(node.out[0])) <= kSmallGradientBytes) {
      by_axes[node.attrs.get_string("axes", "") + ":" + std::string(name_of(graph.type(node.out[0]).dtype))]
          .push_back(ir::NodeId(static_cast<uint32_t>(n)));
    }
  }
  return by_axes;
}

/// Merges the sums of small gradients into one collective (contract C3: coalesced, once per step).
void join_small_gradients(ir::Graph& graph) {
  for (const auto& [axes, nodes] : small_gradient_sums(graph)) {
    if (nodes.size() < 2) continue;
    std::vector<ValueId> in;
    for (ir::NodeId id : nodes) in.push_back(graph.node(id).in[0]);
    const Node& first = graph.node(nodes[0]);
    const ir::OpDef& op = *first.op;
    const std::vector<ValueId> out = graph.add(op, in, first.attrs, in.size(), first.from);
    for (size_t i = 0; i < out.size(); ++i) {
      const ValueId old = graph.node(nodes[i]).out[0];
      graph.value(out[i]).shard = graph.value(old).shard;
      graph.replace_uses(old, out[i]);
    }
  }
  graph.sort();
}

/// The mesh with one rank on the axes that this pass leaves alone.
tensor::MeshShape touched(const Partitioning& how) {
  std::vector<tensor::MeshAxis> axes = how.mesh.axes();
  for (tensor::MeshAxis& axis : axes) {
    if (is_untouched(how, axis)) axis.extent = 1;
  }
  return tensor::MeshShape(std::move(axes));
}

}  // namespace

bool is_untouched(const Partitioning& how, const tensor::MeshAxis& axis) {
  return axis.extent == 1 ||
         std::find(how.untouched.begin(), how.untouched.end(), axis.name) != how.untouched.end();
}

ir::Graph partition(const ir::Graph& global, const Partitioning& how) {
  base::check(how.coordinates.size() == how.mesh.axes().size(), "one coordinate for each mesh axis");
  ir::Graph graph = global;
  graph.mesh = how.mesh;
  split_classes(graph, how.placed, touched(how));
  split_experts(graph, how.placed, touched(how));
  // The last axis cuts first; the axis before it then cuts the parts that result.
  for (size_t a = how.mesh.axes().size(); a-- > 0;) {
    const tensor::MeshAxis& axis = how.mesh.axes()[a];
    if (is_untouched(how, axis)) continue;
    graph = partition_axis(graph, how,
                           {.axis = a, .name = axis.name, .ranks = axis.extent, .index = how.coordinates[a]});
  }
  join_sums(graph, how.coordinates);
  join_small_gradients(graph);
  return graph;
}

}  // namespace trireme::passes

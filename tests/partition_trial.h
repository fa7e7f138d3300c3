// What tests of the partition pass share: runs the ranks' graphs as threads and holds their results against
// the whole graph's.
#pragma once

#include <map>

#include "ops/collective/test_ranks_cpu.h"
#include "ops/test_eval.h"
#include "passes/partition/partition.h"
#include "passes/partition/partition_parts.h"
#include "passes/train/train.h"

namespace trireme::tests {

using ir::ValueId;
using ops::testing::random_tensor;
using passes::Partitioning;
using tensor::DType;
using tensor::MeshShape;
using tensor::Placement;
using tensor::Shard;
using tensor::Tensor;

using Feeds = std::map<std::string, Tensor>;  ///< inputs and states by name, whole

/// This rank's part of a tensor under all axes of the mesh.
inline Tensor part_of_rank(Tensor t, const Shard& shard, const Partitioning& how) {
  for (size_t a = how.mesh.axes().size(); a-- > 0;) {
    const tensor::MeshAxis& axis = how.mesh.axes()[a];
    t = passes::part_of(t, shard.on(a), {a, axis.name, axis.extent, how.coordinates[a]});
  }
  return t;
}

/// Outputs of a graph whose inputs and states have the content `feeds`, by name; `eval(node, operands)` runs
/// a node.
template <class Eval>
Feeds run_by_name(const ir::Graph& graph, const Feeds& feeds, Eval eval) {
  std::vector<Tensor> values(graph.values().size());
  for (size_t i = 0; i < values.size(); ++i) {
    const ir::Value& v = graph.values()[i];
    values[i] = v.data;
    if (v.kind == ir::ValueKind::input || v.kind == ir::ValueKind::state) values[i] = feeds.at(v.name);
  }
  for (const ir::Node& node : graph.nodes()) {
    std::vector<Tensor> in;
    for (ValueId id : node.in) in.push_back(id == ir::kNoValue ? Tensor() : values[index(id)]);
    const std::vector<Tensor> made = eval(node, in);
    for (size_t i = 0; i < node.out.size(); ++i) {
      if (node.out[i] != ir::kNoValue) values[index(node.out[i])] = made[i];
    }
  }
  Feeds out;
  for (size_t i = 0; i < graph.outputs().size(); ++i)
    out[graph.output_names()[i]] = values[index(graph.outputs()[i])];
  return out;
}

inline Feeds run_whole(const ir::Graph& graph, const Feeds& feeds) {
  return run_by_name(graph, feeds, [](const ir::Node& node, const std::vector<Tensor>& in) {
    return ops::testing::run(node.op_name(), in, node.attrs, node.out.size());
  });
}

/// Nodes of an op.
inline size_t count(const ir::Graph& graph, std::string_view op) {
  size_t n = 0;
  for (const ir::Node& node : graph.nodes()) n += node.op_name() == op ? 1 : 0;
  return n;
}

/// Largest difference relative to the largest element (gradients that vanish are noise).
inline double distance(const Tensor& a, const Tensor& b) {
  if (a.dims() != b.dims()) return 1e30;
  const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
  double worst = 0, size = 1e-4;
  for (size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, std::abs(x[i] - y[i]));
    size = std::max(size, std::abs(y[i]));
  }
  return worst / size;
}

/// Runs every rank's graph and checks its outputs against the whole graph's, and the type check of every
/// rank's graph. Returns rank 0's graph.
ir::Graph expect_same(const ir::Graph& whole, Partitioning how, const Feeds& feeds, double tolerance = 1e-11);

/// A graph being written down: nodes by op name, f64 weights as states with random content.
class Model {
 public:
  ir::Graph graph;
  Feeds feeds;
  std::map<std::string, Shard> placed;
  std::vector<ValueId> weights;

  ValueId op(std::string_view name, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return graph.add1(ops::table().need(name), std::move(in), std::move(attrs),
                      base::concat(name, graph.nodes().size()));
  }
  ValueId input(const std::string& name, tensor::Dims dims) {
    feeds[name] = random_tensor(DType::f64, dims, -1, 1, feeds.size() + 1);
    return graph.add_input(name, feeds[name].type());
  }
  ValueId weight(const std::string& name, tensor::Dims dims, Shard shard = {}) {
    feeds[name] = random_tensor(DType::f64, dims, -0.5, 0.5, feeds.size() + 1);
    placed[name] = std::move(shard);
    weights.push_back(graph.add_state(name, feeds[name].type()));
    return weights.back();
  }
  ValueId ints(std::vector<int64_t> values) {
    return graph.add_constant(ops::testing::ints(std::move(values)));
  }
  ValueId reshape(ValueId x, std::vector<int64_t> dims) { return op("reshape", {x, ints(std::move(dims))}); }
  ValueId transpose(ValueId x, std::vector<int64_t> perm) {
    return op("transpose", {x}, {{"perm", std::move(perm)}});
  }
  ValueId constant(tensor::Dims dims) {
    return graph.add_constant(random_tensor(DType::f64, std::move(dims), -1, 1, graph.values().size()));
  }

  /// Ends the forward pass in sum(y * c), adds the gradients of all weights as outputs placed like them.
  Partitioning finish(ValueId y, MeshShape mesh) {
    const tensor::Dims dims = graph.type(y).shape.to_dims();
    std::vector<int64_t> axes;
    for (size_t d = 0; d < dims.size(); ++d) axes.push_back(static_cast<int64_t>(d));
    const ValueId loss =
        op("reduce_sum", {op("mul", {y, constant(dims)}), ints(axes)}, {{"keepdims", int64_t{0}}});
    graph.add_output(loss, "loss");
    graph.add_input(passes::kLossWeightInput, {DType::f64, tensor::Shape{}});
    feeds[passes::kLossWeightInput] = Tensor::scalar<double>(0.5);
    Partitioning how{.mesh = std::move(mesh), .coordinates = {}, .placed = placed};
    for (const passes::ParamGradient& g : passes::differentiate(graph, loss, weights)) {
      const std::string name = graph.value(g.param).name;
      graph.add_output(g.gradient, name + ".grad");
      how.outputs[name + ".grad"] = placed[name];
    }
    graph.sort();
    return how;
  }
};

inline Shard on_last(size_t axes, Placement p) {
  Shard s;
  s.set(axes - 1, p);
  return s;
}
inline Shard split(int dim, int sections = 1) { return on_last(1, Placement::split(dim, sections)); }
inline MeshShape tp(int ranks) { return MeshShape({{"tp", ranks}}); }

}  // namespace trireme::tests

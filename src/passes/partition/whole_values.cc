// Gathers values of which a rank holds a part for an op that needs the whole, and cuts the results again.
#include "passes/partition/whole_values.h"

#include "ops/collective/parts.h"
#include "ops/table.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::Placement;

/// The axes that split a tensor placed as `shard`, in mesh order: the last one cuts first.
std::vector<size_t> cutting_axes(const tensor::MeshShape& mesh, const tensor::Shard& shard) {
  std::vector<size_t> axes;
  for (size_t a = 0; a < mesh.axes().size(); ++a) {
    if (shard.on(a).is_split() && mesh.axes()[a].extent > 1) axes.push_back(a);
  }
  return axes;
}

ir::Attrs attrs_of(const ir::Graph& graph, const std::vector<int>& coordinates, size_t axis,
                   const Placement& p) {
  ir::Attrs attrs = ops::group_attrs(graph.mesh, coordinates, graph.mesh.axes()[axis].name);
  return attrs.set("dim", int64_t{p.dim}).set("sections", int64_t{p.sections});
}

}  // namespace

ValueId gather_whole(ir::Graph& graph, ValueId part, const tensor::Dims& dims,
                     const std::vector<int>& coordinates) {
  tensor::Shard shard = graph.value(part).shard;
  const std::string from = graph.value(part).name;
  for (size_t a : cutting_axes(graph.mesh, shard)) {
    const Placement p = shard.on(a);
    shard.set(a, Placement{});
    // The extent of the gathered dimension: the part that the remaining axes leave of it.
    const tensor::Dims extent = tensor::local_dims(dims, shard, graph.mesh, coordinates);
    ir::Attrs attrs = attrs_of(graph, coordinates, a, p);
    attrs.set("extents", std::vector<int64_t>{extent[static_cast<size_t>(p.dim)]});
    part = graph.add1(ops::table().need("all_gather"), {part}, attrs, from);
    graph.value(part).shard = shard;
  }
  return part;
}

ValueId slice_part(ir::Graph& graph, ValueId whole, const tensor::Shard& shard,
                   const std::vector<int>& coordinates) {
  const std::vector<size_t> axes = cutting_axes(graph.mesh, shard);
  tensor::Shard held = graph.value(whole).shard;
  const std::string from = graph.value(whole).name;
  for (size_t i = axes.size(); i-- > 0;) {
    const Placement p = shard.on(axes[i]);
    whole =
        graph.add1(ops::table().need("shard_slice"), {whole}, attrs_of(graph, coordinates, axes[i], p), from);
    held.set(axes[i], p);
    graph.value(whole).shard = held;
  }
  return whole;
}

void assign_state(ir::Graph& graph, ValueId state, ValueId value) {
  // A sum of one term.
  const ValueId first = graph.add_constant(tensor::Tensor::scalar(int64_t{0}));
  graph.add1(ops::table().need("tree_accumulate"), {first, value, state}, {}, graph.value(state).name);
}

}  // namespace trireme::passes

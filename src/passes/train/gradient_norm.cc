// The norm of all gradients over all ranks.
#include "passes/train/gradient_norm.h"

#include <algorithm>

#include "ops/collective/parts.h"
#include "ops/optim/norm_blocks.h"
#include "ops/table.h"

namespace trireme::passes {
namespace {

using ir::ValueId;

/// Gradients that are split over the same axes: their sums of squares are reduced together.
struct NormGroup {
  std::string axes;
  int parts = 1;
  std::vector<ValueId> gradients;
  std::vector<int64_t> dims, blocks;
};

/// The sums of all stages, added in the order of the stages.
ValueId over_stages(ir::Graph& graph, ValueId sum, const std::vector<int>& coordinates) {
  const int64_t stages = graph.mesh.extent("pp");
  const ValueId all = gathered_squares(graph, sum, "pp", coordinates);
  const ir::Attrs attrs{{"parts", std::vector<int64_t>{1}},
                        {"counts", std::vector<int64_t>{stages}},
                        {"operands", std::vector<int64_t>{0}}};
  return graph.add1(ops::table().need("norm_of_squares"), {all}, attrs, "gradient norm");
}

}  // namespace

std::string split_axes(const ir::Graph& graph, ValueId id) {
  std::string axes;
  for (size_t a = 0; a < graph.mesh.axes().size(); ++a) {
    const tensor::MeshAxis& axis = graph.mesh.axes()[a];
    if (!graph.value(id).shard.on(a).is_split() || axis.extent == 1) continue;
    axes += (axes.empty() ? "" : ",") + axis.name;
  }
  return axes;
}

tensor::Dims whole_dims(const ir::Graph& graph, ValueId id) {
  tensor::Dims dims = graph.type(id).shape.to_dims();
  for (size_t a = 0; a < graph.mesh.axes().size(); ++a) {
    const tensor::Placement p = graph.value(id).shard.on(a);
    if (p.is_split()) dims[static_cast<size_t>(p.dim)] *= graph.mesh.axes()[a].extent;
  }
  return dims;
}

int ranks_along(const tensor::MeshShape& mesh, const std::string& axes) {
  int ranks = 1;
  if (axes.empty()) return ranks;
  for (size_t i : mesh.indices_of(axes)) ranks *= mesh.axes()[i].extent;
  return ranks;
}

ops::NormBlocks local_blocks(const ir::Graph& graph, ValueId id) {
  const ops::NormBlocks whole = ops::norm_blocks(whole_dims(graph, id));
  const std::string axes = split_axes(graph, id);
  if (axes.empty()) return whole;
  if (axes != "dp") return {};
  const tensor::Placement p = graph.value(id).shard.on(graph.mesh.index_of("dp"));
  const int64_t parts = graph.mesh.extent("dp");
  const bool is_cut_between = p.dim == whole.dim && p.sections == 1 && whole.blocks % parts == 0;
  return is_cut_between ? ops::NormBlocks{whole.dim, whole.blocks / parts} : ops::NormBlocks{};
}

ValueId gathered_squares(ir::Graph& graph, ValueId part, const std::string& axes,
                         const std::vector<int>& coordinates) {
  if (axes.empty()) return part;
  ir::Attrs attrs = ops::group_attrs(graph.mesh, coordinates, axes);
  attrs.set("dim", int64_t{0});
  return graph.add1(ops::table().need("all_gather"), {part}, attrs, "gradient norm");
}

ValueId add_gradient_norm(ir::Graph& graph, std::span<const ParamGradient> gradients,
                          const std::vector<int>& coordinates) {
  std::vector<NormGroup> groups;
  std::vector<int64_t> counts, operands;
  for (const ParamGradient& g : gradients) {
    if (!g.is_counted) continue;
    const std::string axes = split_axes(graph, g.gradient);
    auto at = std::find_if(groups.begin(), groups.end(), [&](const NormGroup& n) { return n.axes == axes; });
    if (at == groups.end()) at = groups.insert(at, {axes, ranks_along(graph.mesh, axes), {}, {}, {}});
    const ops::NormBlocks blocks = local_blocks(graph, g.gradient);
    at->gradients.push_back(g.gradient);
    at->dims.push_back(blocks.dim);
    at->blocks.push_back(blocks.blocks);
    counts.push_back(blocks.blocks);
    operands.push_back(at - groups.begin());
  }
  std::vector<ValueId> sums;
  std::vector<int64_t> parts;
  for (const NormGroup& n : groups) {
    const ir::Attrs attrs{{"dims", n.dims}, {"blocks", n.blocks}};
    const ValueId own = graph.add1(ops::table().need("block_squares"), n.gradients, attrs, "gradient norm");
    sums.push_back(gathered_squares(graph, own, n.axes, coordinates));
    parts.push_back(n.parts);
  }
  const bool has_stages = graph.mesh.extent("pp") > 1;
  const ir::Attrs attrs{
      {"parts", parts}, {"counts", counts}, {"operands", operands}, {"root", int64_t{!has_stages}}};
  // A stage adds nothing if other stages count all its parameters (such as a head that is the embedding).
  const ValueId norm = sums.empty() && has_stages
                           ? graph.add_constant(tensor::Tensor::zeros(tensor::DType::f64, {1}))
                           : graph.add1(ops::table().need("norm_of_squares"), sums, attrs, "gradient norm");
  return has_stages ? over_stages(graph, norm, coordinates) : norm;
}

}  // namespace trireme::passes

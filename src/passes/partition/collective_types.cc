// The sharding rules of ops that convert placements (training contract C1): the placements that each takes
// and returns.
#include "passes/partition/collective_types.h"

#include <algorithm>

#include "base/error.h"
#include "ops/collective/issue.h"

namespace trireme::passes {
namespace {

using tensor::Placement;
using tensor::PlacementKind;
using tensor::Shard;

/// One operand of a converting op, considered on one mesh axis.
struct Operand {
  const ir::Graph& graph;
  const ir::Node& node;
  const Shard& shard;
  size_t axis, position;
  bool joins;  ///< the node communicates over this axis

  Placement here() const { return shard.on(axis); }
  std::string name() const {
    const std::string& given = graph.value(node.in[position]).name;
    return base::concat("operand ", position, given.empty() ? "" : base::concat(" '", given, "'"));
  }
  int ranks() const { return graph.mesh.axes()[axis].extent; }
};

/// The operand's placement on the axis after the node, or the reason for a refusal.
struct Step {
  Placement out = {};
  std::string refusal = {};
};

Step refuse(std::string text) { return {.refusal = std::move(text)}; }

int attr_dim(const Operand& o, std::string_view name) {
  return static_cast<int>(
      ir::normal_axis(o.node.attrs.need_int(name), o.graph.type(o.node.in[o.position]).shape.rank()));
}

int attr_sections(const Operand& o) { return static_cast<int>(o.node.attrs.get_int("sections", 1)); }

std::vector<size_t> joined_axes(const Operand& o) {
  return o.graph.mesh.indices_of(o.node.attrs.get_string("axes", ""));
}

/// If other axes split the same dimension, the inner axes must gather or split first: the last mesh axis cuts
/// outermost.
Step keep_split(const Operand& o, const std::vector<int>& moved_dims) {
  const Placement p = o.here();
  if (!p.is_split() || std::find(moved_dims.begin(), moved_dims.end(), p.dim) == moved_dims.end()) return {p};
  for (const size_t joined : joined_axes(o)) {
    if (o.axis < joined) {
      return refuse(base::concat(o.name(), ": dimension ", p.dim, " is also split over ",
                                 o.graph.mesh.axes()[o.axis].name, ", inside the parts of ",
                                 o.graph.mesh.axes()[joined].name, ": convert it over both or over ",
                                 o.graph.mesh.axes()[o.axis].name, " first"));
    }
  }
  return {p};
}

std::string is_whole(const Operand& o, std::string_view what) {
  return base::concat(o.name(), " is whole on every rank already: ", what, " would count it ", o.ranks(),
                      " times; the step is superfluous");
}

Step reduced(const Operand& o, bool is_max, Placement to) {
  const Placement p = o.here();
  if (!o.joins) {
    if (is_max && p.is_partial() && !p.is_max)
      return refuse(base::concat(o.name(), " is a partial sum: reduce it before a maximum is taken"));
    if (!is_max && p.is_partial() && p.is_max)
      return refuse(base::concat(o.name(), " awaits a maximum: reduce it before it is summed"));
    return {p};
  }
  if (p.is_replicated()) return refuse(is_whole(o, "a reduction"));
  if (p.is_split()) {
    return refuse(base::concat(o.name(), " is ", p.to_string(),
                               ": the ranks hold different elements, an all_gather is meant"));
  }
  if (p.is_partial() && p.is_max != is_max) {
    return refuse(base::concat(o.name(), is_max ? " is a partial sum, reduced by a maximum"
                                                : " awaits a maximum, reduced by a sum"));
  }
  return {to};  // partial, or the ranks' own values, whose sum or maximum is the same everywhere
}

Step gathered(const Operand& o) {
  const int dim = attr_dim(o, "dim");
  if (!o.joins) return keep_split(o, {dim});
  const Placement p = o.here(), want = Placement::split(dim, attr_sections(o));
  if (p == want) return {Placement{}};
  if (p.is_replicated()) {
    return refuse(base::concat(o.name(), " is whole on every rank already: an all_gather would repeat it ",
                               o.ranks(), " times; the step is superfluous"));
  }
  if (p.is_partial()) {
    return refuse(base::concat(o.name(), " is a partial ", p.is_max ? "maximum" : "sum",
                               ": an all_reduce is meant, an all_gather puts unfinished parts side by side"));
  }
  return refuse(base::concat(o.name(), " is ", p.to_string(), ", the gather joins ", want.to_string()));
}

Step sliced(const Operand& o) {
  const int dim = attr_dim(o, "dim");
  if (!o.joins) return keep_split(o, {dim});
  const Placement p = o.here();
  if (p.is_replicated()) return {Placement::split(dim, attr_sections(o))};
  if (p.is_partial()) {
    return refuse(base::concat(o.name(),
                               " is a partial sum: a slice of it drops what the other ranks hold; a "
                               "reduce_scatter is missing"));
  }
  return refuse(base::concat(o.name(), " is ", p.to_string(), ", a slice takes a whole value"));
}

Step scattered(const Operand& o) {
  const int dim = attr_dim(o, "dim");
  if (!o.joins) {
    const Step kept = keep_split(o, {dim});
    return kept.refusal.empty() ? reduced(o, false, kept.out) : kept;
  }
  return reduced(o, false, Placement::split(dim, attr_sections(o)));
}

Step swapped(const Operand& o) {
  const int split = attr_dim(o, "split"), concat = attr_dim(o, "concat");
  if (!o.joins) return keep_split(o, {split, concat});
  if (o.here() == Placement::split(concat)) return {Placement::split(split)};
  return refuse(base::concat(o.name(), " is ", o.here().to_string(), ", all_to_all takes ",
                             Placement::split(concat).to_string()));
}

Step step_of(const Operand& o) {
  const std::string_view op = o.node.op_name();
  if (op == "all_reduce") return reduced(o, o.node.attrs.get_string("op", "sum") == "max", {});
  if (op == "all_gather") return gathered(o);
  if (op == "reduce_scatter") return scattered(o);
  if (op == "shard_slice") return sliced(o);
  if (op == "all_to_all") return swapped(o);
  return {o.here()};  // gradient_sum leaves x as it is
}

}  // namespace

bool converts_placements(const ir::Node& node) { return node.op->schema.changes_placement; }

AxisTypes convert_placements(const ir::Graph& graph, const ir::Node& node, const std::vector<Shard>& in,
                             size_t axis) {
  const std::vector<size_t> axes = graph.mesh.indices_of(node.attrs.get_string("axes", ""));
  const bool joins = std::find(axes.begin(), axes.end(), axis) != axes.end();
  AxisTypes types;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const Operand operand{graph, node, in[i], axis, i, joins};
    if (node.op_name() == "gather_into") {
      if (i % 2 == 0) continue;  // the state, which is checked against the result as in any update
      const Step step = gathered(operand);
      if (!step.refusal.empty()) return {.refusal = step.refusal};
      types.out.push_back(step.out);
      continue;
    }
    const Step step = step_of(operand);
    if (!step.refusal.empty()) return {.refusal = step.refusal};
    types.out.push_back(step.out);
  }
  types.out.resize(node.out.size());
  return types;
}

void fix_collective_order(ir::Graph& graph) {
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    ir::Node& node = graph.node(ir::NodeId(static_cast<uint32_t>(n)));
    if (node.op != nullptr && node.op->schema.is_collective) node.attrs.erase("order");
  }
  graph.sort();
  int64_t next = 0;
  for (const ops::Issue& issue : ops::issue_order(graph, false)) {
    graph.node(ir::NodeId(static_cast<uint32_t>(issue.node))).attrs.set("order", next++);
  }
  graph.sort();
}

}  // namespace trireme::passes

// Splits a bound graph at nodes whose shapes or whose choice of kernel depends on data.
#include "lower/segments.h"

#include <algorithm>
#include <limits>

#include "lower/graph_part.h"
#include "ops/table.h"

namespace trireme::lower {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

bool are_static(const Graph& graph, const std::vector<ValueId>& ids) {
  return std::all_of(ids.begin(), ids.end(),
                     [&](ValueId id) { return id == ir::kNoValue || graph.type(id).shape.is_static(); });
}

/// True if no kernel runs the node without the value of an operand (an axis, a mode) that is not known yet.
bool needs_values(const Graph& bound, const Node& node) {
  if (node.op->schema.is_view || node.op->schema.expand) return false;
  const bool all_known = std::all_of(node.in.begin(), node.in.end(), [&](ValueId id) {
    return id == ir::kNoValue || bound.known(id) != nullptr;
  });
  return !all_known && ops::choose_kernel(*node.op, bound.view(node), tensor::DeviceKind::cpu) == nullptr;
}

/// True if later nodes must wait for the node. Where operands have no shapes yet, the graph that the node
/// comes to lie in tells, when it is bound.
bool ends_part(const Graph& bound, const Node& node) {
  if (node.op->schema.is_control) return true;
  return are_static(bound, node.in) && (!are_static(bound, node.out) || needs_values(bound, node));
}

/// Where each node lies: part 0 is `ready` with the frontier behind it.
struct NodePlaces {
  std::vector<size_t> part;
  std::vector<char> ends;  // whether readers of its results lie in a later part
  size_t parts = 1;
};

NodePlaces place_nodes(const Graph& bound) {
  NodePlaces p;
  for (const Node& node : bound.nodes()) {
    size_t part = 0;
    for (ValueId id : node.in) {
      if (bound.producer(id) == nullptr) continue;
      const size_t by = ir::index(bound.value(id).producer);
      part = std::max(part, p.part[by] + (p.ends[by] ? 1 : 0));
    }
    p.part.push_back(part);
    p.ends.push_back(ends_part(bound, node));
    p.parts = std::max(p.parts, part + 1);
  }
  return p;
}

/// The values that each part hands out: what later parts read of it, part 0's frontier included, and results
/// of the graph.
std::vector<std::vector<ValueId>> handed_out(const Graph& bound, const NodePlaces& places) {
  std::vector<std::vector<ValueId>> wanted(places.parts);
  std::vector<char> seen(bound.values().size());
  const auto want = [&](ValueId id, size_t reader) {
    if (bound.producer(id) == nullptr || seen[ir::index(id)]) return;
    const size_t by = ir::index(bound.value(id).producer), part = places.part[by];
    // What the frontier computes is no result of a program.
    if (part == reader || (part == 0 && places.ends[by])) return;
    wanted[part].push_back(id);
    seen[ir::index(id)] = 1;
  };
  constexpr size_t kOutside = std::numeric_limits<size_t>::max();
  for (size_t n = 0; n < places.part.size(); ++n) {
    const bool is_frontier = places.part[n] == 0 && places.ends[n];
    for (ValueId id : bound.nodes()[n].in) want(id, is_frontier ? kOutside : places.part[n]);
  }
  for (ValueId id : bound.outputs()) want(id, kOutside);
  return wanted;
}

}  // namespace

Segments cut_segments(const Graph& bound) {
  Segments cut;
  const NodePlaces places = place_nodes(bound);
  cut.complete =
      places.parts == 1 && std::none_of(places.ends.begin(), places.ends.end(), [](char c) { return c; });
  if (cut.complete) {
    cut.ready = bound;
    cut.ready_outputs = bound.outputs();
    return cut;
  }
  std::vector<GraphPart> parts(places.parts, GraphPart(bound));
  for (ValueId id : bound.inputs()) parts[0].add_input(id);
  for (size_t n = 0; n < places.part.size(); ++n) {
    if (places.part[n] == 0 && places.ends[n])
      cut.frontier.push_back(NodeId(static_cast<uint32_t>(n)));
    else
      parts[places.part[n]].add_node(bound.nodes()[n]);
  }
  std::vector<std::vector<ValueId>> outputs = handed_out(bound, places);
  for (size_t p = 0; p < parts.size(); ++p) {
    for (ValueId id : outputs[p]) parts[p].add_output(id, bound.value(id).name);
  }
  cut.ready = parts[0].take();
  cut.ready_outputs = std::move(outputs[0]);
  for (size_t p = 1; p < parts.size(); ++p)
    cut.rest.push_back({parts[p].take(), parts[p].inputs(), std::move(outputs[p])});
  return cut;
}

}  // namespace trireme::lower

// Splits a bound graph at nodes whose shapes or whose choice of kernel depends on data.
#include "lower/segments.h"

#include <algorithm>

#include "lower/graph_part.h"
#include "ops/table.h"

namespace trireme::lower {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

bool has_static_results(const Graph& graph, const Node& node) {
  return std::all_of(node.out.begin(), node.out.end(),
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

enum class Place : uint8_t { ready, frontier, rest };

std::vector<Place> place_nodes(const Graph& bound) {
  std::vector<Place> places;
  for (const Node& node : bound.nodes()) {
    Place place = Place::ready;
    for (ValueId id : node.in) {
      if (bound.producer(id) == nullptr) continue;
      if (places[ir::index(bound.value(id).producer)] != Place::ready) place = Place::rest;
    }
    const bool is_open = node.op->schema.is_control || !has_static_results(bound, node);
    if (place == Place::ready && (is_open || needs_values(bound, node))) {
      place = Place::frontier;
    }
    places.push_back(place);
  }
  return places;
}

/// Values that the first part must return: graph outputs that it computes, and operands of later nodes.
std::vector<ValueId> handed_out(const Graph& bound, const std::vector<Place>& places) {
  std::vector<ValueId> wanted;
  std::vector<char> seen(bound.values().size());
  const auto want = [&](ValueId id) {
    if (bound.producer(id) == nullptr || places[ir::index(bound.value(id).producer)] != Place::ready) return;
    if (!seen[ir::index(id)]) wanted.push_back(id);
    seen[ir::index(id)] = 1;
  };
  for (size_t n = 0; n < places.size(); ++n) {
    if (places[n] == Place::ready) continue;
    for (ValueId id : bound.nodes()[n].in) want(id);
  }
  for (ValueId id : bound.outputs()) want(id);
  return wanted;
}

}  // namespace

Segments cut_segments(const Graph& bound) {
  Segments cut;
  const std::vector<Place> places = place_nodes(bound);
  cut.complete = std::all_of(places.begin(), places.end(), [](Place p) { return p == Place::ready; });
  if (cut.complete) {
    cut.ready = bound;
    cut.ready_outputs = bound.outputs();
    return cut;
  }
  GraphPart ready(bound), rest(bound);
  for (ValueId id : bound.inputs()) ready.add_input(id);
  for (size_t n = 0; n < places.size(); ++n) {
    if (places[n] == Place::ready) ready.add_node(bound.nodes()[n]);
    if (places[n] == Place::frontier) cut.frontier.push_back(NodeId(static_cast<uint32_t>(n)));
    if (places[n] == Place::rest) rest.add_node(bound.nodes()[n]);
  }
  cut.ready_outputs = handed_out(bound, places);
  for (ValueId id : cut.ready_outputs) ready.add_output(id, bound.value(id).name);
  for (size_t i = 0; i < bound.outputs().size(); ++i)
    rest.add_output(bound.outputs()[i], bound.output_names()[i]);
  cut.rest_inputs = rest.inputs();
  cut.ready = ready.take();
  cut.rest = rest.take();
  return cut;
}

}  // namespace trireme::lower

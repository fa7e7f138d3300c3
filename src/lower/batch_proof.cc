// Proves from its graph that a model may be batched, without being told so.
#include "lower/batch_proof.h"

#include <algorithm>

#include "passes/independence/independence.h"

namespace trireme::lower {
namespace {

/// Trial extents for open inner dimensions (an image's height, a length), since models may refuse some
/// extents. Odd ones find graphs that mix rows at odd lengths only.
constexpr int64_t kExtents[] = {1, 3, 16, 37, 64, 224, 256};

/// The reason why an input has no open dimension of rows; empty if every input has one.
std::string why_not_open(const ir::Graph& graph) {
  if (graph.inputs().empty()) return "the model has no inputs";
  for (ir::ValueId id : graph.inputs()) {
    const tensor::Shape& shape = graph.type(id).shape;
    const bool is_open = shape.has_rank() && shape.rank() > 0 && !shape[0].is_static();
    if (!is_open)
      return base::concat("the first dimension of input '", graph.value(id).name,
                          "' is not open: ", shape.to_string());
  }
  return {};
}

/// Finds an inner dimension whose extent must equal the number of rows: it would tie rows together.
std::string why_not_separate(const ir::Graph& graph) {
  for (ir::ValueId rows : graph.inputs()) {
    const tensor::Dim& first = graph.type(rows).shape[0];
    for (ir::ValueId id : graph.inputs()) {
      const std::vector<tensor::Dim>& dims = graph.type(id).shape.dims();
      if (std::find(dims.begin() + 1, dims.end(), first) != dims.end())
        return base::concat("'", first.to_string(), "' is an inner dimension of input '",
                            graph.value(id).name, "' too");
    }
  }
  return {};
}

/// Input shapes with `extent` for every open dimension.
std::vector<tensor::Dims> shapes_of(const ir::Graph& graph, int64_t extent) {
  std::vector<tensor::Dims> shapes;
  for (ir::ValueId id : graph.inputs()) {
    shapes.emplace_back();
    for (const tensor::Dim& d : graph.type(id).shape.dims())
      shapes.back().push_back(d.is_static() ? d.value() : extent);
  }
  return shapes;
}

bool has_open_inner_dimension(const ir::Graph& graph) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(), [&](ir::ValueId id) {
    const std::vector<tensor::Dim>& dims = graph.type(id).shape.dims();
    return std::any_of(dims.begin() + 1, dims.end(), [](const tensor::Dim& d) { return !d.is_static(); });
  });
}

}  // namespace

std::string why_not_batched(const ir::Graph& graph) {
  if (std::string why = why_not_open(graph); !why.empty()) return why;
  if (std::string why = why_not_separate(graph); !why.empty()) return why;
  std::vector<int64_t> extents{1};
  if (has_open_inner_dimension(graph)) extents.assign(std::begin(kExtents), std::end(kExtents));
  std::string refusal;
  bool is_shown = false;
  for (const int64_t extent : extents) {
    try {
      const std::string why = passes::why_rows_mix(graph, shapes_of(graph, extent));
      if (!why.empty()) return why;
      is_shown = true;
    } catch (const base::Error& e) {
      refusal = e.what();
    }
  }
  return is_shown ? "" : "the graph does not take every number of rows: " + refusal;
}

std::string why_positions_meet(const ir::Graph& graph, const std::vector<std::optional<size_t>>& dims) {
  std::string refusal;
  bool is_shown = false;
  for (const int64_t extent : kExtents) {
    try {
      const auto uses = passes::follow_index(graph, {.shapes = shapes_of(graph, extent), .dims = dims});
      for (size_t i = 0; i < graph.outputs().size(); ++i) {
        const passes::IndexUse& use = uses[ir::index(graph.outputs()[i])];
        if (use.kind == passes::IndexUse::Kind::along) continue;
        return use.why.empty() ? base::concat("result '", graph.output_names()[i], "' has no positions")
                               : use.why;
      }
      is_shown = true;
    } catch (const base::Error& e) {
      refusal = e.what();
    }
  }
  return is_shown ? "" : refusal;
}

bool rows_are_independent(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes) {
  if (!why_not_open(graph).empty()) return false;
  for (const tensor::Dims& dims : shapes) {
    if (dims.empty() || dims[0] != shapes[0][0]) return false;
  }
  try {
    return passes::why_rows_mix(graph, shapes).empty();
  } catch (const base::Error&) {
    return false;  // a constant of the model fits only this number of rows
  }
}

}  // namespace trireme::lower

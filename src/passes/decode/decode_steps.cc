// Builds the graphs for the steps of a pipeline stage.
#include "passes/decode/decode_steps.h"

#include <algorithm>

namespace trireme::passes {

using tensor::Dims;

namespace {

/// Extents of the inputs of a step.
Dims dims_of_step(const tensor::Shape& shape, DecodeSteps::Size size) {
  Dims dims;
  for (const tensor::Dim& d : shape.dims()) {
    const bool by_token = !d.is_static() && d.name() == "tokens";
    base::check(d.is_static() || by_token || d.name() == "sequences", "an extent '", d.to_string(),
                "' between stages of decoding");
    dims.push_back(d.is_static() ? d.value() : by_token ? size.tokens : size.sequences);
  }
  return dims;
}

}  // namespace

DecodeSteps::DecodeSteps(DecodeGraph form, int64_t pages, int64_t most_sequences, int64_t seen_places)
    : form_(std::move(form)), most_sequences_(most_sequences), seen_places_(seen_places) {
  set_pages(form_, pages);
}

const ir::Graph& DecodeSteps::graph(DecodeResult result) {
  if (result == DecodeResult::logits) return form_.graph;
  if (!draws_.contains(result))
    draws_.emplace(result, draw_form(form_, result, most_sequences_, seen_places_));
  return draws_.at(result);
}

std::vector<Dims> DecodeSteps::operand_shapes(DecodeResult result, Size size) const {
  const int64_t n = size.tokens, s = size.sequences;
  std::vector<Dims> shapes{{1, n}, {1, n}, {n}, {s, form_.options.most_pages}, {s}, {s + 1}, {s}};
  if (has_adapters()) shapes.push_back({n});
  if (result == DecodeResult::logits) return shapes;
  const bool has_penalties = includes(result, DecodeResult::penalized);
  shapes.insert(shapes.end(), {{most_sequences_}, {n}, {s, has_penalties ? 7 : 4}, {s, 2}});
  if (has_penalties) shapes.push_back({s});
  if (includes(result, DecodeResult::edited)) {
    const int64_t words = (form_.vocabulary + 31) / 32;
    shapes.insert(shapes.end(), {{s, words}, {s, kMostBiases}, {s, kMostBiases}});
  }
  if (includes(result, DecodeResult::listed)) shapes.push_back({s, 1});
  return shapes;
}

std::vector<size_t> DecodeSteps::operands(const ir::Graph& graph) const {
  std::vector<size_t> operands;
  for (const ir::ValueId id : graph.inputs()) {
    const std::string& name = graph.value(id).name;
    const auto arrived = std::find(form_.arrives.begin(), form_.arrives.end(), name);
    const bool is_ids = form_.takes_tokens() && id == graph.inputs()[kDecodeIds];
    if (arrived != form_.arrives.end()) {
      operands.push_back(kDrawInputs + static_cast<size_t>(arrived - form_.arrives.begin()));
    } else {
      operands.push_back(is_ids ? size_t{kDecodeIds} : operand_called(name));
    }
  }
  return operands;
}

std::vector<Dims> DecodeSteps::input_shapes(DecodeResult result, Size size, const ir::Graph& graph) const {
  const std::vector<Dims> of_step = operand_shapes(result, size);
  const std::vector<size_t> numbers = inputs_of(result, has_adapters()), mine = operands(graph);
  std::vector<Dims> shapes;
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto at = std::find(numbers.begin(), numbers.end(), mine[i]);
    shapes.push_back(at != numbers.end() ? of_step[static_cast<size_t>(at - numbers.begin())]
                                         : dims_of_step(graph.type(graph.inputs()[i]).shape, size));
  }
  return shapes;
}

}  // namespace trireme::passes

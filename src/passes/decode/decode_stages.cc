// Cuts a language model in its decoding form into pipeline stages.
#include "passes/decode/decode_stages.h"

#include <algorithm>
#include <set>

#include "passes/decode/adapters.h"
#include "passes/pipeline/pipeline.h"

namespace trireme::passes {
namespace {

using tensor::Dim;

/// The same nodes with the extents of a one-token step.
ir::Graph of_one_token(const DecodeGraph& form) {
  ir::Graph graph = form.graph;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    tensor::Shape& shape = graph.value(graph.inputs()[i]).type.shape;
    for (size_t d = 0; d < shape.rank(); ++d) {
      if (!shape[d].is_static()) shape[d] = Dim(i == kDecodeStarts ? 2 : 1);
    }
  }
  graph.infer_all();
  return graph;
}

std::set<std::string> states_of(const ir::Graph& graph) {
  std::set<std::string> names;
  for (const ir::Value& v : graph.values()) {
    if (v.kind == ir::ValueKind::state) names.insert(v.name);
  }
  return names;
}

DecodeGraph stage_of(const DecodeGraph& form, PipelinePart part, int number) {
  DecodeGraph stage{.graph = std::move(part.graph),
                    .layers = {},
                    .adapters = {.slots = form.adapters.slots, .rank = form.adapters.rank, .modules = {}},
                    .positions = form.positions,
                    .vocabulary = form.vocabulary,
                    .options = form.options,
                    .arrives = std::move(part.in),
                    .leaves = std::move(part.out)};
  const std::set<std::string> states = states_of(stage.graph);
  for (const DecodeLayer& layer : form.layers) {
    const bool has_keys = states.contains(key_pages(layer.number));
    base::check(has_keys == states.contains(value_pages(layer.number)), "keys and values of layer ",
                layer.number, " are in different stages");
    if (has_keys) stage.layers.push_back(layer);
  }
  for (const AdapterModule& m : form.adapters.modules) {
    if (states.contains(adapter_ranks(m.name))) stage.adapters.modules.push_back(m);
  }
  const std::string& ids = form.graph.value(form.graph.inputs()[kDecodeIds]).name;
  for (const ir::ValueId id : stage.graph.inputs()) {
    if (number > 0 && stage.graph.value(id).name == ids)
      base::fail_unsupported("decoding over pipeline stages of a model whose later layers read the tokens");
  }
  return stage;
}

}  // namespace

std::vector<DecodeGraph> cut_decode_form(const DecodeGraph& form, int stages,
                                         const std::vector<std::string>& cuts) {
  const ir::Graph planned = of_one_token(form);
  const auto parts = static_cast<size_t>(stages);
  const PipelineCut cut =
      cuts.empty() ? plan_stream_cut(planned, parts) : plan_pipeline_cut(planned, parts, cuts);
  std::vector<DecodeGraph> made;
  size_t layers = 0;
  for (int k = 0; k < stages; ++k) {
    made.push_back(stage_of(form, cut_part(form.graph, cut, static_cast<size_t>(k)), k));
    layers += made.back().layers.size();
  }
  base::check(layers == form.layers.size(), "stages hold ", layers, " layers of ", form.layers.size());
  return made;
}

}  // namespace trireme::passes

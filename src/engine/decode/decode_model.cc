// A language model in the form for decoding.
#include "engine/decode/decode_model.h"

#include "passes/lists/lists.h"
#include "passes/partition/shard_rules.h"

namespace trireme::engine {
namespace {

/// Weights as in training and in programs of whole sequences, by the graph that still has its attention.
std::map<std::string, tensor::Shard> places(const ir::Graph& graph, const passes::Strategy& strategy) {
  ir::Graph whole = passes::bind_shapes(graph, {{1, 2}});
  passes::run_passes(passes::prepare_passes(), whole);
  whole.sort();
  return passes::place_params(whole, strategy);
}

}  // namespace

DecodeModel::DecodeModel(const ir::Graph& graph, const DecodeOptions& options)
    : strategy_(passes::choose_kv_ranks(graph, options.strategy)) {
  if (strategy_.pp > 1 || strategy_.dp > 1 || strategy_.sequence)
    base::fail_unsupported("ranks that decode together split weights and heads (tp); pp=", strategy_.pp,
                           ", dp=", strategy_.dp, ", sequence=", strategy_.sequence);
  passes::DecodeOptions o{.page_type = options.cache_type, .page_tokens = options.page_tokens};
  o.most_pages = (options.max_length + o.page_tokens - 1) / o.page_tokens;
  form_ = passes::decode_form(graph, o);
  passes::run_passes(passes::prepare_passes(), form_.graph);
  if (strategy_.tp == 1) {
    if (options.weights.stores()) weights_ = passes::store_weights(form_.graph, options.weights);
    return;
  }
  placed_ = places(graph, strategy_);
  const tensor::MeshShape mesh = strategy_.mesh();
  for (size_t i = 0; mesh.extent("tp") > 1 && i < form_.layers.size(); ++i) {
    tensor::Shard by_heads;
    by_heads.set(mesh.index_of("tp"), tensor::Placement::split(1));
    placed_[passes::key_pages(i)] = placed_[passes::value_pages(i)] = by_heads;
  }
}

}  // namespace trireme::engine

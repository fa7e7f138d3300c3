// A language model in the form for decoding.
#include "engine/decode/decode_model.h"

#include <set>

#include "base/machine/cpu_info.h"
#include "ops/blocks/blocks.h"
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

/// Bytes of a matrix that is worth letting go of. Passes compare the content of smaller constants.
constexpr int64_t kLeastHeld = 65536;

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
    if (options.device == "cpu") hold_blocks();
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

void DecodeModel::hold_blocks() {
  ir::Graph& graph = form_.graph;
  std::map<ir::ValueId, const tensor::BlockFormat*> packed;
  std::set<ir::ValueId> read;  // by others, too
  for (const ir::Node& node : graph.nodes()) {
    if (node.op == nullptr) continue;
    const std::optional<size_t> at = ops::packed_operand(node);
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (at == i) {
        packed[node.in[i]] = &tensor::need_block_format(node.attrs.get_string("format", ""));
      } else {
        read.insert(node.in[i]);
      }
    }
  }
  const int threads = base::read_cpu_info().threads();
  for (const auto& [id, format] : packed) {
    if (read.contains(id) || graph.known(id) == nullptr) continue;
    if (graph.known(id)->bytes() < kLeastHeld) continue;
    ops::HeldBlocks held = ops::hold_packed(*graph.known(id), *format, packs_, threads);
    graph.value(id).data = held.address;
    held_.push_back(std::move(held.packed));
  }
}

}  // namespace trireme::engine

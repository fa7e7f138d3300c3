// A language model in the form for decoding.
#include "engine/decode/decode_model.h"

#include "base/files/file.h"
#include "base/machine/cpu_info.h"
#include "engine/prepared_model.h"
#include "ops/blocks/blocks.h"
#include "passes/decode/adapters.h"
#include "passes/lists/lists.h"
#include "passes/partition/shard_rules.h"
#include "passes/precision/byte_products.h"

namespace trireme::engine {
namespace {

/// Weights as in training and in programs of whole sequences, by the graph that still has its attention.
std::map<std::string, tensor::Shard> places(const ir::Graph& graph, const passes::Strategy& strategy) {
  ir::Graph whole = passes::bind_shapes(graph, {{1, 2}});
  passes::run_passes(passes::prepare_passes(), whole);
  whole.sort();
  return passes::place_params(whole, strategy);
}

/// Gives back pages of files that nothing reads any more.
void release(const MappedFiles& files, const tensor::Tensor& read) {
  for (const auto& file : files) file->release_pages({read.raw(), static_cast<size_t>(read.bytes())});
}

}  // namespace

DecodeModel::DecodeModel(const ir::Graph& graph, const DecodeOptions& options, const MappedFiles& files)
    : strategy_(passes::choose_kv_ranks(graph, options.strategy)) {
  strategy_.check(passes::Purpose::decoding);
  passes::DecodeOptions o{.page_type = options.cache_type, .page_tokens = options.page_tokens};
  o.most_pages = (options.max_length + o.page_tokens - 1) / o.page_tokens;
  form_ = passes::decode_form(graph, o);
  if (options.max_adapters > 0) {
    if (strategy_.tp > 1)
      base::fail_unsupported("adapters of a model that ranks hold together; tp=", strategy_.tp);
    if (options.device != "cpu")
      base::fail_unsupported("adapters on device '", options.device, "'; the CPU has them");
    passes::add_adapters(form_, options.max_adapters, options.max_adapter_rank);
  }
  widen_floats_for(form_.graph, strategy_, options.device);
  passes::run_passes(passes::prepare_passes(), form_.graph);
  if (options.device == "cpu" && strategy_.weights.weight_rows == ops::BlockRows::q8) {
    passes::use_byte_products(form_.graph, [&](const tensor::Tensor& codes) { release(files, codes); });
  }
  if (strategy_.tp == 1) {
    if (strategy_.weights.stores()) weights_ = passes::store_weights(form_.graph, strategy_.weights);
    if (options.device == "cpu") hold_blocks(files);
    return;
  }
  files_ = files;
  placed_ = places(graph, strategy_);
  const tensor::MeshShape mesh = strategy_.mesh();
  for (size_t i = 0; mesh.extent("tp") > 1 && i < form_.layers.size(); ++i) {
    tensor::Shard by_heads;
    by_heads.set(mesh.index_of("tp"), tensor::Placement::split(1));
    placed_[passes::key_pages(i)] = placed_[passes::value_pages(i)] = by_heads;
  }
}

void DecodeModel::hold_blocks(const MappedFiles& files) {
  ir::Graph& graph = form_.graph;
  const int threads = base::read_cpu_info().threads();
  for (const auto& [id, format] : ops::packed_weights(graph)) {
    const tensor::Tensor original = *graph.known(id);
    ops::HeldBlocks held = ops::hold_packed(original, *format, packs_, threads);
    release(files, original);
    graph.value(id).data = held.address;
    held_.push_back(std::move(held.packed));
  }
}

}  // namespace trireme::engine

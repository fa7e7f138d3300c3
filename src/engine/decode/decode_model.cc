// Prepares a language model for decoding.
#include "engine/decode/decode_model.h"

#include <set>

#include "base/files/file.h"
#include "base/machine/cpu_info.h"
#include "engine/prepared_model.h"
#include "ops/blocks/blocks.h"
#include "passes/decode/adapters.h"
#include "passes/decode/decode_stages.h"
#include "passes/lists/lists.h"
#include "passes/partition/shard_rules.h"
#include "passes/precision/byte_products.h"
#include "tensor/blocks/coded_rows.h"

namespace trireme::engine {
namespace {

/// Placements of the weights, as in training, from the graph that still contains its attention.
std::map<std::string, tensor::Shard> places(const ir::Graph& graph, const passes::Strategy& strategy) {
  ir::Graph whole = passes::bind_shapes(graph, {{1, 2}});
  passes::run_passes(passes::prepare_passes(), whole);
  whole.sort();
  return passes::place_params(whole, strategy);
}

/// Releases the pages of mapped files that hold a tensor which is not read any more.
void release(const MappedFiles& files, const tensor::Tensor& read) {
  for (const auto& file : files) file->release_pages({read.raw(), static_cast<size_t>(read.bytes())});
}

/// Bytes of weights that are not `known` yet.
int64_t count_weights(const DecodeStage& stage, std::set<const std::byte*>& known) {
  int64_t bytes = 0;
  for (const ir::Value& v : stage.form.graph.values()) {
    if (v.data.defined() && known.insert(v.data.raw()).second) bytes += static_cast<int64_t>(v.data.bytes());
  }
  return bytes;
}

/// Parts of a layer's keys and values, on different ranks. Where the heads do not divide, the weights of the
/// attention are whole as well, so that every rank keeps all of them.
int64_t kv_parts(const passes::DecodeLayer& layer, const tensor::MeshShape& mesh) {
  const int64_t ranks = mesh.extent("tp");
  return layer.kv_heads % ranks == 0 ? ranks : 1;
}

/// How the ranks of one stage share it.
passes::Strategy of_stage(passes::Strategy strategy) {
  strategy.pp = 1;
  strategy.cuts.clear();
  return strategy;
}

}  // namespace

DecodeModel::DecodeModel(const ir::Graph& graph, const DecodeOptions& options, const MappedFiles& files)
    : strategy_(passes::choose_kv_ranks(graph, options.strategy)), device_(options.device) {
  strategy_.check(passes::Purpose::decoding);
  passes::DecodeOptions o{.page_type = options.cache_type, .page_tokens = options.page_tokens};
  o.most_pages = (options.max_length + o.page_tokens - 1) / o.page_tokens;
  passes::DecodeGraph form = passes::decode_form(graph, o);
  if (options.max_adapters > 0) {
    if (options.device != "cpu")
      base::fail_unsupported("adapters on device '", options.device, "'; the CPU has them");
    passes::add_adapters(form, options.max_adapters, options.max_adapter_rank);
  }
  if (strategy_.world() > 1) files_ = files;
  if (strategy_.tp > 1) {
    placed_ = places(graph, of_stage(strategy_));
    const tensor::MeshShape mesh = strategy_.mesh();
    for (size_t i = 0; i < form.layers.size(); ++i) {
      if (kv_parts(form.layers[i], mesh) == 1) continue;
      tensor::Shard by_heads;
      by_heads.set(mesh.index_of("tp"), tensor::Placement::split(1));
      placed_[passes::key_pages(i)] = placed_[passes::value_pages(i)] = by_heads;
    }
    passes::place_adapters(form.adapters, mesh, placed_);
  }
  stages_.resize(static_cast<size_t>(stages()));
  if (stages() == 1) {
    stages_[0] = prepare(std::move(form), files);
    return;
  }
  cuts_ = passes::cut_decode_form(form, stages(), strategy_.cuts);
  form_ = std::move(form);
  if (strategy_.tp > 1) place_crossings();
}

/// Values that cross between stages remain partial sums if they are computed as such: the ranks then add them
/// up at the same place, and in the same order, as in a model without stages.
void DecodeModel::place_crossings() {
  const tensor::MeshShape mesh = strategy_.mesh();
  tensor::Shard by_sums;
  for (const char* axis : {"tpr", "tp"}) {
    if (mesh.extent(axis) > 1) by_sums.set(mesh.index_of(axis), tensor::Placement::partial_sum());
  }
  for (const passes::DecodeGraph& stage : cuts_) {
    for (const std::string& name : stage.leaves) placed_[name] = by_sums;
  }
}

const DecodeStage& DecodeModel::stage(int number) const {
  base::check(number >= 0 && number < stages(), "stage ", number, " of ", stages());
  const auto i = static_cast<size_t>(number);
  if (stages() == 1) return *stages_[0];
  return *making_.get<DecodeStage>(base::concat(number), [&] {
    return stages_[i] = prepare(cuts_[i], files_);  // stages_ holds it, so it is made once
  });
}

std::shared_ptr<const DecodeStage> DecodeModel::prepare(passes::DecodeGraph form,
                                                        const MappedFiles& files) const {
  auto made = std::make_shared<DecodeStage>(DecodeStage{.form = std::move(form), .weights = {}});
  ir::Graph& graph = made->form.graph;
  widen_floats_for(graph, strategy_, device_);
  passes::run_passes(passes::prepare_passes(), graph);
  if (device_ == "cpu") {
    passes::use_byte_products(graph, strategy_.weights.weight_rows,
                              [&](const tensor::Tensor& codes) { release(files, codes); });
  }
  if (strategy_.tp > 1) return made;
  if (strategy_.weights.stores()) made->weights = passes::store_weights(graph, strategy_.weights);
  if (device_ == "cpu") hold_blocks(*made, files);
  return made;
}

const passes::DecodeGraph& DecodeModel::part(int number) const {
  return stages() == 1 ? stage().form : cuts_.at(static_cast<size_t>(number));
}

KvLayout DecodeModel::kv_layout(int number) const {
  const passes::DecodeGraph& form = part(number);
  const tensor::MeshShape mesh = strategy_.mesh();
  KvLayout layout{.layers = {}, .type = form.options.page_type, .page_tokens = form.options.page_tokens};
  for (const passes::DecodeLayer& l : form.layers)
    layout.layers.push_back({l.kv_heads / kv_parts(l, mesh), tensor::row_elements(layout.type, l.dim)});
  return layout;
}

int64_t DecodeModel::weight_bytes() const {
  int64_t bytes = 0;
  std::set<const std::byte*> known;  // a tied weight is in several stages
  for (int i = 0; i < stages(); ++i) bytes += count_weights(stage(i), known);
  return bytes;
}

int64_t DecodeModel::weight_bytes(int number) const {
  std::set<const std::byte*> known;
  return count_weights(stage(number), known);
}

/// Weights in blocks that products alone read stay in packed form: what they were packed from is let go.
void DecodeModel::hold_blocks(DecodeStage& stage, const MappedFiles& files) const {
  ir::Graph& graph = stage.form.graph;
  const int threads = base::read_cpu_info().threads();
  for (const auto& [id, format] : ops::packed_weights(graph)) {
    const tensor::Tensor original = *graph.known(id);
    ops::HeldBlocks held = ops::hold_packed(original, *format, packs_, threads);
    release(files, original);
    graph.value(id).data = held.address;
    stage.held.push_back(std::move(held.packed));
  }
}

}  // namespace trireme::engine

// One rank's part of a model for inference: its stage of the pipeline, its parts of the weights, its programs
// by shape.
#include "engine/rank_model.h"

#include <algorithm>

#include "engine/batch_proof.h"
#include "passes/lists/lists.h"
#include "passes/partition/collective_types.h"
#include "passes/partition/partition.h"
#include "passes/partition/shard_rules.h"
#include "passes/train/train.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using ir::ValueId;
using tensor::Dims;

size_t position(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

/// Into how many equal parts a batch is cut so that stages work at the same time: with twice as many as there
/// are stages, a third of the time is lost at most; more would make products smaller than they need be.
int micro_batches_of(const ir::Graph& graph, const std::vector<Dims>& shapes, int stages) {
  if (stages == 1 || shapes.empty() || shapes[0].empty()) return 1;
  const int64_t rows = shapes[0][0];
  if (rows < 2 || !rows_are_independent(graph, shapes)) return 1;
  int parts = static_cast<int>(std::min<int64_t>(rows, 2 * stages));
  while (rows % parts != 0) --parts;
  return parts;
}

std::vector<Dims> with_rows_of_one(std::vector<Dims> shapes, int micro_batches) {
  for (Dims& dims : shapes) dims[0] /= micro_batches;
  return shapes;
}

}  // namespace

RankModel::RankModel(std::shared_ptr<const PreparedModel> model, passes::Strategy strategy, int rank,
                     compile::CompileOptions compile, const std::string& device)
    : model_(std::move(model)),
      strategy_(passes::choose_kv_ranks(model_->graph(), std::move(strategy))),
      mesh_(strategy_.mesh()),
      coordinates_(mesh_.coordinates(rank)),
      stage_(mesh_.has("pp") ? coordinates_[mesh_.index_of("pp")] : 0),
      device_(runtime::open_device(device)),
      compile_(std::move(compile)) {
  compile_.on = device_->kind();
  compile_.device = compile_.on == tensor::DeviceKind::cpu ? nullptr : device_.get();
  if (device_->memory_bytes() > 0)
    compile_.memory_bytes = std::min(compile_.memory_bytes, device_->memory_bytes());
  base::require(strategy_.dp == 1,
                "ranks of one model are tensor parallel and pipeline stages; dp=", strategy_.dp,
                " is for training, instances serve several batches at a time");
}

const RankProgram& RankModel::program_for(const std::vector<Dims>& shapes) {
  std::unique_ptr<RankProgram>& found = programs_[shapes];
  if (found == nullptr) found = build(shapes);
  return *found;
}

/// Weights are the same tensors in all programs: one copy of each part, packed once.
void RankModel::share_weights(ir::Graph& graph) {
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ValueId(static_cast<uint32_t>(i)));
    if (v.kind != ir::ValueKind::param || v.name.empty()) continue;
    const auto [at, is_new] = weights_.emplace(v.name, v.data);
    if (!is_new && at->second.type() == v.data.type()) v.data = at->second;
  }
}

ir::Graph RankModel::partitioned(const ir::Graph& part, const std::map<std::string, tensor::Shard>& placed) {
  ir::Graph local = passes::partition(
      part, {.mesh = mesh_, .coordinates = coordinates_, .placed = placed, .untouched = {"pp"}});
  passes::infer_shards(local);
  passes::fix_collective_order(local);
  share_weights(local);
  return local;
}

std::unique_ptr<RankProgram> RankModel::build(const std::vector<Dims>& shapes) {
  auto made = std::make_unique<RankProgram>();
  ir::Graph whole = passes::bind_shapes(model_->graph(), shapes);
  std::vector<std::string> names;
  for (const ValueId id : whole.inputs()) names.push_back(whole.value(id).name);
  for (size_t i = 0; i < whole.outputs().size(); ++i) {
    made->results.push_back(whole.type(whole.outputs()[i]));
    if (made->results.back().shape.is_static()) continue;
    base::fail_unsupported("the shape of '", whole.output_names()[i],
                           "' depends on data: such a model runs on one rank");
  }
  made->micro_batches = micro_batches_of(model_->graph(), shapes, strategy_.pp);
  if (made->micro_batches > 1)
    whole = passes::bind_shapes(model_->graph(), with_rows_of_one(shapes, made->micro_batches));
  passes::run_passes(passes::forward_passes(), whole);
  whole.sort();
  const std::map<std::string, tensor::Shard> placed = passes::place_params(whole, strategy_);
  passes::PipelinePart part{.graph = std::move(whole), .in = {}, .out = {}};
  if (strategy_.pp > 1) {
    if (!cut_)
      cut_ = passes::plan_pipeline_cut(part.graph, static_cast<size_t>(strategy_.pp), strategy_.cuts);
    part = passes::cut_part(part.graph, *cut_, static_cast<size_t>(stage_));
  }
  ir::Graph local = mesh_.size() > strategy_.pp ? partitioned(part.graph, placed) : std::move(part.graph);
  // Nothing computes joined weights here: a rank's part of them is not a part of the whole's.
  passes::run_passes(passes::bucket_passes(), local, {.off = {"projections"}});
  made->program = std::make_shared<const compile::Program>(compile::compile(local, compile_, packs_));
  const compile::Program& p = *made->program;
  base::check(p.states.empty(), "a model with states runs on one rank");
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const size_t at = position(names, p.input_names[i]);
    if (at < names.size()) {
      made->inputs.push_back(at);
    } else {
      base::check(position(part.in, p.input_names[i]) == made->in.size(), "crossing values out of order");
      made->in.push_back(p.inputs[i]);
    }
  }
  for (size_t i = 0; i < p.outputs.size() && stage_ + 1 < strategy_.pp; ++i)
    made->out.push_back(p.outputs[i]);
  return made;
}

}  // namespace trireme::engine

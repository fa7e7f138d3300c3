// One rank's share of a model for inference: its pipeline stage, its parts of the weights, and its programs
// by shape.
#include "engine/ranks/rank_model.h"

#include <algorithm>

#include "base/machine/memory.h"
#include "lower/batch_proof.h"
#include "passes/lists/lists.h"
#include "passes/partition/shard_rules.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using ir::ValueId;
using tensor::Dims;

size_t position(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

/// The number of equal parts of a batch that let stages work at the same time: with twice as many parts as
/// stages at most a third of the time is lost; more parts would make products needlessly small.
int micro_batches_of(const ir::Graph& graph, const std::vector<Dims>& shapes, int stages) {
  if (stages == 1 || shapes.empty() || shapes[0].empty()) return 1;
  const int64_t rows = shapes[0][0];
  if (rows < 2 || !lower::rows_are_independent(graph, shapes)) return 1;
  int parts = static_cast<int>(std::min<int64_t>(rows, 2 * stages));
  while (rows % parts != 0) --parts;
  return parts;
}

std::vector<Dims> with_rows_of_one(std::vector<Dims> shapes, int micro_batches) {
  for (Dims& dims : shapes) dims[0] /= micro_batches;
  return shapes;
}

}  // namespace

RankModel::RankModel(std::shared_ptr<const PreparedModel> model, const SessionOptions& options, int rank,
                     const std::string& device)
    : model_(std::move(model)),
      part_(passes::choose_kv_ranks(model_->graph(), options.strategy), rank),
      device_(runtime::open_device(device)),
      target_{.compile = {.on = device_->kind(),
                          .device = device_->kind() == tensor::DeviceKind::cpu ? nullptr : device_.get(),
                          .host_fallback = options.host_fallback,
                          .threads = options.threads,
                          .only_kernel = options.only_kernel,
                          .memory_bytes =
                              options.memory_bytes > 0 ? options.memory_bytes : base::memory_limit_bytes()},
              .passes = options.passes,
              .strategy = options.strategy},
      programs_(options.max_programs) {
  base::check(options.strategy.weights == model_->strategy().weights,
              "a model and its ranks are to have one strategy");
  int64_t& memory = target_.compile.memory_bytes;
  if (device_->memory_bytes() > 0) memory = std::min(memory, device_->memory_bytes());
}

std::shared_ptr<const RankProgram> RankModel::program_for(const std::vector<Dims>& shapes) {
  return programs_.find(shapes,
                        [&] { return std::make_unique<std::shared_ptr<const RankProgram>>(build(shapes)); });
}

std::shared_ptr<const RankProgram> RankModel::build(const std::vector<Dims>& shapes) {
  auto made = std::make_shared<RankProgram>();
  ir::Graph whole = passes::bind_shapes(model_->graph(), shapes);
  std::vector<std::string> names;
  for (const ValueId id : whole.inputs()) names.push_back(whole.value(id).name);
  for (size_t i = 0; i < whole.outputs().size(); ++i) {
    made->results.push_back(whole.type(whole.outputs()[i]));
    if (made->results.back().shape.is_static()) continue;
    base::fail_unsupported("the shape of '", whole.output_names()[i],
                           "' depends on data: such a model runs on one rank");
  }
  made->micro_batches = micro_batches_of(model_->graph(), shapes, stages());
  if (made->micro_batches > 1)
    whole = passes::bind_shapes(model_->graph(), with_rows_of_one(shapes, made->micro_batches));
  passes::PipelinePart part = part_.of(std::move(whole));
  made->program = lower::bind_weights(
      lower::lower_inference(std::move(part.graph), target_, packs_, model_->graph()).program, {packs_});
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
  for (size_t i = 0; i < p.outputs.size() && stage() + 1 < stages(); ++i) made->out.push_back(p.outputs[i]);
  return made;
}

}  // namespace trireme::engine

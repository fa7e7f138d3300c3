// Prints what one rank of a mesh runs, without starting the mesh.
#include "cli/inspect_rank.h"

#include <cstdio>
#include <iostream>
#include <map>

#include "base/machine/cpu_info.h"
#include "base/files/file.h"
#include "cli/model_input.h"
#include "lower/inference.h"
#include "lower/step_lowering.h"
#include "passes/lists/lists.h"
#include "passes/partition/shard_rules.h"
#include "train/task.h"

namespace trireme::cli {
namespace {

constexpr double kMiB = 1 << 20;

/// Returns the strategy with its numbers replaced by those of a text such as "dp=8,tp=8".
passes::Strategy with_ranks(passes::Strategy strategy, const std::string& text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto [axis, number] = split_assignment(text.substr(begin, end - begin));
    const bool is_known = axis == "dp" || axis == "tp" || axis == "pp" || axis == "ep" || axis == "zero";
    base::require(is_known, "--ranks: dp, tp, pp, ep or zero, not '", axis, "'");
    base::Json one = base::Json::object();
    one.set(axis, base::parse_json(number));
    base::OptionList(strategy).parse_json(one);
    begin = end + 1;
  }
  return strategy;
}

lower::RankPlace place_of(const passes::Strategy& strategy, int rank) {
  const tensor::MeshShape mesh = strategy.mesh();
  base::require(rank >= 0 && rank < mesh.size(), "there is no rank ", rank, " of ", mesh.size());
  return {mesh, mesh.coordinates(rank)};
}

void print_place(const lower::RankPlace& place, int rank) {
  std::printf("rank %d of %d:", rank, place.mesh.size());
  for (size_t i = 0; i < place.coordinates.size(); ++i) {
    const tensor::MeshAxis& axis = place.mesh.axes()[i];
    if (axis.extent > 1) std::printf(" %s %d/%d", axis.name.c_str(), place.coordinates[i], axis.extent);
  }
  std::printf("\n");
}

void print_program(const std::string& name, const compile::Program& p, const RankInspection::Prints& prints) {
  std::map<std::string, int> meetings;
  for (const compile::Step& step : p.steps) {
    if (!step.axes.empty()) ++meetings[base::concat(step.op->schema.name, " ", step.axes)];
  }
  std::printf("%-22s %5zu steps %12.3f GFLOP %12.1f MiB moved %10.1f MiB arena", name.c_str(), p.steps.size(),
              p.cost().flop / 1e9, p.cost().bytes / kMiB, static_cast<double>(p.memory.arena_bytes) / kMiB);
  for (const auto& [what, count] : meetings) std::printf("  %s x%d", what.c_str(), count);
  std::printf("\n");
  std::fflush(stdout);
  if (prints.program) std::cout << compile::print_steps(p);
  if (prints.memory) std::cout << compile::print_memory(p);
  if (prints.why) std::cout << compile::print_refusals(p);
}

/// The programs of a step, named by their purpose.
struct Programs {
  std::vector<std::pair<std::string, std::shared_ptr<const compile::Program>>> list;
  int64_t buffer_bytes = 0;  ///< of the micro-batches in flight in a pipeline

  void add(std::string name, std::shared_ptr<const compile::Program> program) {
    list.emplace_back(std::move(name), std::move(program));
  }
};

Programs programs_of(lower::StepLowering& lowering, const std::vector<tensor::Dims>& shapes,
                     size_t micro_batches) {
  using lower::StepPart;
  Programs made;
  if (lowering.stages() == 1) {
    if (micro_batches > 1)
      made.add("micro-batch", lowering.lower({shapes, micro_batches, StepPart::more}).program);
    made.add(micro_batches > 1 ? "last, with the update" : "step",
             lowering.lower({shapes, micro_batches, StepPart::last}).program);
    return made;
  }
  const lower::LoweredPipeline lowered = lowering.lower_pipeline({shapes, micro_batches, StepPart::update});
  made.buffer_bytes = lowered.buffer_bytes;
  for (size_t c = 0; c < lowered.chunks.size(); ++c) {
    const lower::LoweredStage& stage = lowered.chunks[c];
    const std::string part = lowered.chunks.size() > 1 ? base::concat(" of part ", c) : "";
    made.add("forward" + part, stage.forward.program);
    made.add("backward" + part, stage.backward.program);
    if (stage.weights.program != nullptr) made.add("weight gradients" + part, stage.weights.program);
  }
  if (!lowered.tied.program->outputs.empty()) made.add("tied weights", lowered.tied.program);
  made.add("update", lowered.update.program);
  return made;
}

/// Prints the bytes of all states of the programs, and of their largest arena.
void print_memory_of(const Programs& programs) {
  std::map<std::string, int64_t> states;
  int64_t arena = 0, held = 0;
  for (const auto& [name, program] : programs.list) {
    for (const compile::SlotId id : program->states) states[program->slot(id).name] = program->slot(id).bytes;
    arena = std::max(arena, program->memory.arena_bytes);
  }
  for (const auto& [name, bytes] : states) held += bytes;
  std::printf(
      "this rank holds %.1f MiB in %zu states (weights, sums of gradients, moments), %.1f MiB of scratch",
      static_cast<double>(held) / kMiB, states.size(), static_cast<double>(arena) / kMiB);
  if (programs.buffer_bytes > 0)
    std::printf(" and %.1f MiB for micro-batches in flight",
                static_cast<double>(programs.buffer_bytes) / kMiB);
  std::printf("\n");
}

/// Shapes of the inputs of one micro-batch: its rows, and the number of tokens in samples of the data set.
std::vector<tensor::Dims> step_shapes(const ir::Graph& loss, const train::TrainConfig& config,
                                      const RankInspection& options, int64_t rows) {
  std::vector<std::string> dims = options.sizes.dim;
  if (config.data.context > 0) {
    for (const ir::ValueId id : loss.inputs()) {
      const tensor::Shape& shape = loss.type(id).shape;
      for (size_t i = 1; i < shape.rank(); ++i) {
        if (!shape[i].is_static())
          dims.insert(dims.begin(), base::concat(shape[i].name(), "=", config.data.context));
      }
    }
  }
  return input_shapes(loss, rows, options.sizes.shape, dims);
}

int inspect_training(const std::string& path, const RankInspection& options, const DeviceOptions& on) {
  train::TrainConfig config;
  train::ConfigSections sections;
  config.bind(sections);
  sections.read_yaml(base::read_file(path), path);
  for (const std::string& assignment : options.set) sections.assign(assignment);
  model::AbsentParams absent;
  std::string text;
  const model::Model model = train::open_trained_model(config.model, config.run.seed, text, &absent);
  ir::Graph loss = train::loss_graph(model, config.loss);
  loss.sort();
  config.parallel = passes::choose_kv_ranks(loss, with_ranks(config.parallel, options.ranks));
  const train::BatchPlan batch = train::plan_batch(config.batch, config.parallel.dp);
  const lower::RankPlace place = place_of(config.parallel, options.rank);
  print_place(place, options.rank);
  lower::StepOptions step = config.session_options();
  step.passes.off = options.off;
  const std::string device = on.device == "cpu" ? config.run.device : on.device;
  const int threads = options.threads > 0 ? options.threads : base::read_cpu_info().threads();
  base::SharedCache packs;
  lower::StepLowering lowering(
      lower::training_form(loss, step.freeze),
      {step,
       place,
       {.on = runtime::kind_of_device(device), .host_fallback = on.host_fallback, .threads = threads}},
      packs);
  const std::vector<tensor::Dims> shapes = step_shapes(loss, config, options, batch.micro);
  std::printf("a step of %s\n", batch.text().c_str());
  const Programs programs = programs_of(lowering, shapes, static_cast<size_t>(batch.accumulate));
  for (const auto& [name, program] : programs.list) print_program(name, *program, options.prints);
  print_memory_of(programs);
  return 0;
}

int inspect_model(const std::string& path, const RankInspection& options, const DeviceOptions& on) {
  // The report on stored weights tells what storing them loses; programs need types only.
  model::Model model = open_model(path, options.weights.stores() ? Content::all : Content::none);
  model.graph.sort();
  const passes::PassOptions passes{.off = options.off};
  passes::run_passes(passes::prepare_passes(), model.graph, passes);
  const passes::Strategy strategy =
      passes::choose_kv_ranks(model.graph, with_ranks({.weights = options.weights}, options.ranks));
  const lower::RankPlace place = place_of(strategy, options.rank);
  print_place(place, options.rank);
  lower::RankPart part(strategy, options.rank);
  ir::Graph bound = passes::bind_shapes(
      model.graph, input_shapes(model.graph, options.sizes.batch, options.sizes.shape, options.sizes.dim));
  const int threads = options.threads > 0 ? options.threads : base::read_cpu_info().threads();
  base::SharedCache packs;
  lower::InferenceTarget target;
  target.compile.on = runtime::kind_of_device(on.device);
  target.compile.host_fallback = on.host_fallback;
  target.compile.threads = threads;
  target.passes = passes;
  target.strategy = strategy;
  ir::Graph local = part.of(std::move(bound)).graph;
  if (options.weights.stores()) std::cout << part.stored().text();
  const auto lowered = lower::lower_inference(std::move(local), target, packs, model.graph);
  print_program("inference", *lowered.program, options.prints);
  std::printf("this rank holds %.1f MiB of weights\n",
              static_cast<double>(lowered.program->memory.constant_bytes) / kMiB);
  return 0;
}

}  // namespace

void RankInspection::fields(base::OptionList& f) {
  f.add("ranks", &ranks,
        "dp=8,tp=8: what one rank of such a mesh runs, with pp, ep and zero too; none of them need be here");
  f.add("rank", &rank, "which of them").at_least(0);
  f.add("set", &set, "section.key=value over the file of a training; may be repeated");
}

int inspect_rank(const std::string& path, const RankInspection& options, const DeviceOptions& on) {
  const bool is_training = path.ends_with(".yaml") || path.ends_with(".yml");
  return is_training ? inspect_training(path, options, on) : inspect_model(path, options, on);
}

}  // namespace trireme::cli

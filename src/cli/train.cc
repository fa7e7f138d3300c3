// trireme train: trains a model from one configuration file; stops cleanly on SIGINT, SIGTERM and SIGUSR1,
// and can resume later.
#include <iostream>
#include <optional>

#include "base/files/file.h"
#include "cli/start_signals.h"
#include "cli/stop_signals.h"
#include "cli/train_command.h"
#include "cli/verb.h"
#include "comm/world.h"
#include "compile/program.h"
#include "passes/partition/shard_rules.h"
#include "train/files/run_lock.h"
#include "train/task.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/weights.h"

namespace trireme::cli {
namespace {

void save_trained(const train::TrainConfig& config, train::Trainer& trainer, const model::Model& model,
                  const train::Ranks& ranks, base::Env& env) {
  if (config.save.format == train::ExportFormat::none) return;
  const ir::Graph trained = trainer.session().trained_graph(config.save.average);
  if (!ranks.is_leader()) return;
  std::map<std::string, tensor::Tensor> weights;
  for (const ir::Value& v : trained.values()) {
    if (v.kind == ir::ValueKind::param) weights.emplace(v.name, v.data);
  }
  model::Model saved = model;
  saved.graph = train::with_weights(std::move(saved.graph), [&](const std::string& name) {
    const auto found = weights.find(name);
    return found == weights.end() ? nullptr : &found->second;
  });
  const std::string path = train::save_model(saved, config.run.path(), config.run.name, config.save.format);
  env.log.info("train", "saved", {{"model", path}});
}

/// The state that all ranks of this process share.
struct Training {
  const TrainCommand& command;
  const train::TrainConfig& config;
  train::PreparedTask& prepared;
  StopSignals& signals;  // polled by the first rank of this process only
  base::Env& env;
};

void print_programs(train::Trainer& trainer, const train::Ranks& ranks) {
  for (const compile::Program* program : trainer.programs()) {
    if (ranks.is_leader()) std::cout << compile::print_steps(*program) << compile::print_memory(*program);
  }
  std::cout << std::flush;
}

/// Trains as one rank and returns the exit code, which is the same on every rank. The first rank of a process
/// polls its signals.
int train_rank(const Training& t, const train::Ranks& ranks, bool is_first_here) {
  train::Trainer trainer(t.config, t.prepared.task, t.env, ranks);
  ranks.meet();  // all sessions of this process hold their parts, so the whole weights can be freed
  if (is_first_here) {
    train::drop_weights(t.prepared.task.loss, trainer.session());
    train::drop_weights(t.prepared.model.graph, trainer.session());
  }
  if (t.command.program) print_programs(trainer, ranks);
  if (t.command.check) {
    trainer.programs();  // compiled, so that operators without a gradient and programs too large are refused
    return 0;
  }
  const std::string directory = t.config.run.path();
  std::optional<train::RunLock> lock;
  if (ranks.is_leader()) lock.emplace(directory);
  if (t.command.resume == "auto") {
    trainer.resume_auto();
  } else if (!t.command.resume.empty()) {
    trainer.resume(t.command.resume);
  } else {
    base::require(!train::has_checkpoint(directory), "'", directory,
                  "' holds a run already: give --resume auto, or another run.name or run.directory");
    ranks.meet();  // nobody writes there before all ranks have looked
  }
  const train::RunResult result = trainer.run([&] { return is_first_here && t.signals.seen() != 0; });
  if (ranks.is_leader()) {
    t.env.log.info("train", result.interrupted ? "interrupted" : "done",
                   {{"step", result.state.step}, {"directory", directory}});
  }
  if (result.interrupted) return kInterrupted;
  save_trained(t.config, trainer, t.prepared.model, ranks, t.env);
  return 0;
}

/// Describes which weights tensor-parallel ranks split; empty without such ranks.
std::string split_weights(const ir::Graph& loss, const passes::Strategy& parallel) {
  if (parallel.tp == 1) return {};
  return passes::to_text(passes::place_weights(loss, parallel), parallel.mesh());
}

int run_training(const TrainCommand& command, const train::TrainConfig& given,
                 const train::ConfigSections& sections, StartSignals& start, base::Env& env) {
  train::plan_batch(given.batch, given.parallel.dp);  // reports errors once, before ranks start
  train::PreparedTask prepared = train::prepare_task(given, sections);
  train::TrainConfig config = given;
  config.parallel = passes::choose_kv_ranks(prepared.task.loss, given.parallel);
  const tensor::MeshShape shape = config.parallel.mesh();
  const std::optional<comm::LaunchedRank> launched = comm::launched_rank();
  if (!launched || launched->rank == 0) {
    std::cout << (command.quiet ? "" : sections.to_yaml()) << prepared.text
              << split_weights(prepared.task.loss, config.parallel) << std::flush;
  }
  StopSignals signals;  // constructed before the threads of the trainer, which inherit the mask
  start.begun();
  const Training training{command, config, prepared, signals, env};
  if (shape.size() == 1 && !launched) return train_rank(training, {}, true);
  int code = 0;
  comm::run_ranks({.ranks = shape.size(),
                   .deadline_ns = config.run.rank_timeout.ns,
                   .on_stuck =
                       [&](const auto& text) {
                         env.log.error("comm", "stuck", {{"report", text}});
                       }},
                  [&](comm::Communicator& world) {
                    comm::Mesh mesh(world, shape);
                    const bool is_first_here = launched || world.rank() == 0;
                    const int own = train_rank(training, train::Ranks(&mesh), is_first_here);
                    if (is_first_here) code = own;
                  });
  return code;
}

}  // namespace

int train_main(std::span<const std::string> words, base::Env& env) {
  TrainCommand command;
  if (!parse(command, expand_keys(words), "train")) return 0;
  if (command.markdown) {
    std::cout << train::config_markdown();
    return 0;
  }
  StartSignals start;
  train::TrainConfig config;
  train::ConfigSections sections;
  config.bind(sections);
  read_config(command, sections);
  return run_training(command, config, sections, start, env);
}

std::string train_markdown() { return options_markdown<TrainCommand>(); }

}  // namespace trireme::cli

// Checkpoints of a run directory: written during training, and read to resume.
#include "train/run_checkpoints.h"

#include "train/checkpoint/weights.h"
#include "train/report/run_log.h"

namespace trireme::train {

using base::Json;

RunCheckpoints::RunCheckpoints(const TrainConfig& config, const TrainTask& task, RunSteps& steps,
                               const Ranks& ranks, const base::Env& env)
    : config_(config),
      task_(task),
      root_(config.run.path() + "/checkpoints"),
      steps_(steps),
      ranks_(ranks),
      env_(env) {
  base::require(config.spikes.policy != SpikePolicy::rollback || config.checkpoint.every > 0,
                "spikes.policy: rollback needs checkpoint.every");
}

/// Collective on the first call, which also prepares the session so that the optimizer's states exist.
RankStates& RunCheckpoints::states() {
  if (states_ == nullptr) {
    steps_.session().prepare(steps_.shapes(), steps_.accumulated());
    // Frozen weights of model.source are rebuilt with the model; the file model.weights may change or go.
    states_ = std::make_unique<RankStates>(steps_.session().states(), ranks_, frozen_weights(task_.loss),
                                           !config_.model.weights.empty());
  }
  return *states_;
}

/// Opens a checkpoint on every rank; each checks its share of the checksums. If this fails on one rank, all
/// ranks throw its error.
std::unique_ptr<CheckpointReader> RunCheckpoints::open_checked(const std::string& path) const {
  std::unique_ptr<CheckpointReader> reader;
  std::optional<base::Error> own;
  try {
    reader = std::make_unique<CheckpointReader>(path);
    reader->verify(ranks_.rank(), ranks_.size());
  } catch (const base::Error& e) {
    own = e;
  }
  const std::string problem = ranks_.first_problem(own ? own->message() : std::string());
  if (own) throw base::Error(*own);
  base::require(problem.empty(), problem);
  return reader;
}

void RunCheckpoints::load_states(const CheckpointReader& checkpoint) {
  states().check(checkpoint);
  states().load(checkpoint);
  steps_.session().states_changed();
}

void RunCheckpoints::resume(const std::string& path) {
  const std::string found = ranks_.from_leader(ranks_.is_leader() ? find_checkpoint(path) : "");
  const auto checkpoint = open_checked(found);
  try {
    steps_.check(checkpoint->meta());
    load_states(*checkpoint);
    steps_.restore(checkpoint->meta());
  } catch (const base::Error& e) {
    throw e.with("resume from '" + found + "'");
  }
  saved_step_ = committed_step_ = steps_.state().step;
  resumed_from_ = found;
  ranks_before_ = checkpoint->meta().get_or<int64_t>("ranks", 1);
}

/// The checkpoints of the run directory as the leader sees them; the one to try first is last.
std::vector<std::string> RunCheckpoints::candidates() const {
  std::string lines;
  if (ranks_.is_leader()) {
    std::vector<std::string> names = list_checkpoints(root_);
    const std::string newest = newest_checkpoint(root_);
    if (std::erase(names, newest) > 0) names.push_back(newest);
    for (const std::string& name : names) lines += root_ + "/" + name + "\n";
  }
  return lines_of(ranks_.from_leader(lines));
}

bool RunCheckpoints::resume_auto() {
  const std::vector<std::string> paths = candidates();
  for (size_t i = paths.size(); i-- > 0;) {
    try {
      open_checked(paths[i]);
    } catch (const base::Error& e) {
      env_.log.warning("train", "checkpoint_unusable", {{"path", paths[i]}, {"error", e.message()}});
      continue;
    }
    resume(paths[i]);
    return true;
  }
  return false;
}

void RunCheckpoints::open(RunLog& log) {
  log_ = &log;
  writer_ = std::make_unique<CheckpointWriter>(
      CheckpointWriterOptions{.root = root_,
                              .keep = config_.checkpoint.keep,
                              .keep_best = config_.checkpoint.keep_best,
                              .asynchronous = config_.checkpoint.asynchronous,
                              .resumed_step = steps_.state().step},
      files_, ranks_);
}

int64_t RunCheckpoints::bytes() { return states().bytes(); }

void RunCheckpoints::check_space() {
  const int64_t staging = bytes(), free = files_.free_bytes(config_.run.path());
  if (free >= 0 && free < 2 * staging) {
    env_.log.warning("train", "disk_short", {{"free", mebibytes(free)}, {"checkpoint", mebibytes(staging)}});
  }
}

void RunCheckpoints::tell(const std::optional<CheckpointOutcome>& outcome) {
  if (!outcome) return;
  log_->end_line();
  if (outcome->error) {
    env_.log.warning("train", outcome->committed ? "checkpoint_upkeep_failed" : "checkpoint_failed",
                     {{"step", outcome->step}, {"error", outcome->error->message()}});
  }
  if (!outcome->committed) {
    failure_ = outcome->error;
    if (config_.checkpoint.on_error == OnError::go_on) return;
    throw outcome->error->with("checkpoint.on_error is stop; the last complete checkpoint is unharmed");
  }
  committed_step_ = outcome->step;
  log_->event("checkpoint", Json::object({{"step", outcome->step},
                                          {"bytes", outcome->written.bytes},
                                          {"seconds", outcome->seconds}}));
  env_.log.info("train", "checkpoint",
                {{"path", outcome->written.path},
                 {"size", mebibytes(outcome->written.bytes)},
                 {"seconds", outcome->seconds}});
}

void RunCheckpoints::save(double score) {
  const int64_t step = steps_.state().step;
  if (saved_step_ == step) return;
  log_->flush();  // log lines up to this step must exist before the checkpoint does
  wait();         // until it is known which checkpoint this one continues
  Json meta = Json::object({{"name", config_.run.name}});
  if (committed_step_ >= 0) meta.set("previous", committed_step_);
  steps_.describe(meta);
  meta.set("config", task_.config);
  tell(writer_->save({step, std::move(meta), {}}, states().pieces(), score));
  saved_step_ = step;
}

void RunCheckpoints::poll() { tell(writer_->poll()); }
void RunCheckpoints::wait() { tell(writer_->wait()); }

void RunCheckpoints::require_saved() const {
  if (is_saved()) return;
  const std::string noun = base::concat("step ", steps_.state().step, " is in no checkpoint");
  base::check(failure_.has_value(), noun);
  throw failure_->with(noun);
}

/// The newest checkpoint of the regular interval: one saved on a signal would make a resumed run differ.
std::string RunCheckpoints::rollback_target() const {
  const std::vector<std::string> names = list_checkpoints(root_);
  for (size_t i = names.size(); i-- > 0;) {
    const int64_t step = load_checkpoint_meta(root_ + "/" + names[i]).step;
    if (step < steps_.state().step && step % config_.checkpoint.every == 0) return root_ + "/" + names[i];
  }
  return find_checkpoint(root_);
}

void RunCheckpoints::roll_back() {
  wait();
  const std::string path = ranks_.from_leader(ranks_.is_leader() ? rollback_target() : "");
  const auto checkpoint = open_checked(path);
  load_states(*checkpoint);
  steps_.roll_back(checkpoint->meta());
  const int64_t step = steps_.state().step;
  env_.log.warning("train", "rolled_back", {{"step", step}, {"to", path}});
  log_->event("rollback", Json::object({{"step", step}, {"to", checkpoint->step()}}));
}

}  // namespace trireme::train

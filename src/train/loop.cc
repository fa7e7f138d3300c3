// The training loop: one step after another, with logs, evaluations and checkpoints between them.
#include "train/loop.h"

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "base/machine/memory.h"
#include "base/report/svg_plot.h"
#include "train/checkpoint/weights.h"
#include "train/report/report.h"

namespace trireme::train {
namespace {

using base::Json;

/// Only the leader writes logs; returns silent options for all other ranks.
LogOptions log_options(const LogOptions& options, const Ranks& ranks) {
  if (ranks.is_leader()) return options;
  LogOptions silent = options;
  silent.jsonl = silent.tensorboard = silent.report = false;
  silent.progress = {0};
  return silent;
}

}  // namespace

Trainer::Trainer(const TrainConfig& config, TrainTask task, base::Env env, Ranks ranks)
    : config_(config),
      task_(std::move(task)),
      ranks_(ranks),
      env_(ranks.is_leader() ? env : base::Env{quiet_, env.clock}),
      directory_(config.run.path()),
      steps_(config, task_, ranks_, env.clock),
      checkpoints_(config, task_, steps_, ranks_, env_) {
  drop_weights(task_.loss, steps_.session());
  if (task_.validation == nullptr) return;
  EvaluatorOptions o;
  o.batch = steps_.batch().micro;
  o.max_batches = config.eval.batches;
  o.ignore_index = config.loss.ignored;
  o.threads = config.run.threads;
  o.device = steps_.session().device_name();
  o.workers = config.loader.workers;
  o.feed = config.loader.rules();
  o.target_inputs = task_.target_inputs;
  o.ranks = ranks_;
  evaluator_ = std::make_unique<Evaluator>(task_.loss, task_.validation, task_.validation_transform,
                                           std::move(o), env.clock);
}

Trainer::~Trainer() = default;

/// Describes what MFU means in this run, and warns about operators that the device leaves to the host.
std::string Trainer::measure_rates() {
  const bool is_on_device =
      config_.run.device != "cpu" && config_.parallel.precision.compute != passes::Precision::fp8;
  if (is_on_device) {
    const std::string on_host = steps_.session().host_operators(steps_.shapes(), steps_.accumulated());
    if (!on_host.empty() && ranks_.is_leader())
      env_.log.warning("train", "host_fallback", {{"operators", on_host}});
  }
  return steps_.measure_rates(task_);
}

void Trainer::start_run() {
  const int64_t staging = checkpoints_.bytes();
  if (ranks_.is_leader()) {
    std::filesystem::create_directories(directory_);
    base::write_file_atomic(directory_ + "/config.yaml", base::to_yaml(task_.config));
  }
  // Must precede cutting the log back to the step from which the run continues.
  const LostWork lost = ranks_.is_leader()
                            ? work_after(directory_ + "/log.jsonl", steps_.state().step, env_.clock.wall_ns())
                            : LostWork{};
  log_ = std::make_unique<RunLog>(log_options(config_.log, ranks_), directory_, steps_.state().step, env_);
  checkpoints_.open(*log_);
  const std::string mfu = measure_rates();
  env_.log.info("train", "start",
                {{"steps", steps_.total()},
                 {"batch", steps_.batch().text()},
                 {"ranks", ranks_.size()},
                 {"steps_per_epoch", steps_.loader().steps_per_epoch()},
                 {"states", mebibytes(steps_.session().states().bytes())},
                 {"checkpoint_staging", mebibytes(staging)},
                 {"threads", steps_.session().threads()},
                 {"schedule", steps_.schedule().describe()},
                 {"mfu", mfu}});
  checkpoints_.check_space();
  Json event = Json::object({{"name", config_.run.name},
                             {"step", steps_.state().step},
                             {"config", task_.config},
                             {"optimizer", steps_.session().optimizer_text()},
                             {"precision", steps_.session().precision_text()},
                             {"feed", steps_.feeder().text()},
                             {"flop_per_step", steps_.flop_per_step()},
                             {"mfu_definition", mfu}});
  if (config_.parallel.pp > 1)
    event.set("pipeline", steps_.session().pipeline_text(steps_.shapes(), steps_.accumulated()));
  log_->event("start", event);
  if (!checkpoints_.resumed_from().empty()) tell_restart(lost);
}

/// Reports what the death of the previous process cost.
void Trainer::tell_restart(const LostWork& lost) {
  env_.log.info("train", "restarted",
                {{"from", checkpoints_.resumed_from()},
                 {"step", steps_.state().step},
                 {"ranks", ranks_.size()},
                 {"ranks_before", checkpoints_.ranks_before()},
                 {"lost_steps", lost.steps},
                 {"lost_s", base::format_number(lost.seconds, 2)},
                 {"down_s", base::format_number(lost.down_seconds, 2)}});
  log_->event("restarted", Json::object({{"step", steps_.state().step},
                                         {"from", checkpoints_.resumed_from()},
                                         {"ranks", ranks_.size()},
                                         {"ranks_before", checkpoints_.ranks_before()},
                                         {"lost_steps", lost.steps},
                                         {"lost_seconds", lost.seconds},
                                         {"down_seconds", lost.down_seconds}}));
}

/// `own`: this rank's step, before share() combines them.
void Trainer::watch_ranks(const StepRecord& own) {
  for (const SlowRank& slow : slow_.observe(own.step_ms - own.exposed_ms)) {
    log_->end_line();
    env_.log.warning("train", "slow_rank",
                     {{"rank", slow.rank},
                      {"step", own.step},
                      {"busy_ms", base::format_number(slow.busy_ms, 2)},
                      {"peers_ms", base::format_number(slow.median_ms, 2)}});
    log_->event("slow_rank", Json::object({{"step", own.step},
                                           {"rank", slow.rank},
                                           {"busy_ms", slow.busy_ms},
                                           {"peers_ms", slow.median_ms}}));
  }
}

void Trainer::judge(const StepRecord& record) {
  const SpikeVerdict verdict = steps_.judge(record);
  if (std::isfinite(record.loss) && std::isfinite(record.grad_norm)) return answer_spike(record, verdict);
  const int64_t in_row = steps_.state().skips_in_row;
  log_->end_line();
  env_.log.warning(
      "train", "step_skipped",
      {{"step", record.step}, {"loss", record.loss}, {"grad_norm", record.grad_norm}, {"in_row", in_row}});
  // Skipping is how a loss scale is found, so it is a failure only when the scale cannot fall further.
  const bool may_skip = steps_.is_searching_scale() || config_.run.non_finite == NonFinite::skip;
  if (may_skip && in_row < config_.run.max_skips) return;
  base::fail(base::ErrorCode::unavailable, "step ", record.step, ": loss ", record.loss, ", gradient norm ",
             record.grad_norm, "; ", in_row,
             " steps in a row were left out (run.non_finite, run.max_skips); try a lower schedule.lr or "
             "optimizer.clip_norm");
}

void Trainer::answer_spike(const StepRecord& record, const SpikeVerdict& verdict) {
  if (!verdict.reason.empty()) {
    log_->end_line();
    env_.log.warning("train", "spike", {{"step", record.step}, {"reason", verdict.reason}});
  }
  if (verdict.action == SpikeAction::rollback) checkpoints_.roll_back();
  base::require(verdict.action != SpikeAction::stop, "step ", record.step, ": ", verdict.reason,
                "; spikes.policy is stop");
}

EvalRecord Trainer::evaluate() {
  log_->end_line();
  const EvalRecord record =
      evaluator_->run(steps_.session().trained_graph(config_.eval.average), steps_.state().step,
                      [&](const engine::PreparedModel& model) { steps_.session().lend_weights(model); });
  log_->eval(record);
  if (record.rank_correlation >= -1) {
    env_.log.info(
        "train", "evaluated",
        {{"step", record.step}, {"loss", record.loss}, {"rank_correlation", record.rank_correlation}});
  } else if (record.accuracy >= 0) {
    env_.log.info("train", "evaluated",
                  {{"step", record.step}, {"loss", record.loss}, {"accuracy", record.accuracy}});
  } else {
    env_.log.info("train", "evaluated", {{"step", record.step}, {"loss", record.loss}});
  }
  last_eval_ = record;
  return record;
}

/// Higher is better; NaN if the state of this step was not evaluated.
double Trainer::score() const {
  if (!last_eval_ || last_eval_->step != steps_.state().step) return NAN;
  return config_.checkpoint.metric == Metric::accuracy && last_eval_->accuracy >= 0 ? last_eval_->accuracy
                                                                                    : -last_eval_->loss;
}

/// What was trained is worth more than its evaluation, which failed on all ranks alike.
void Trainer::save_before_error() {
  try {
    checkpoints_.save(score());
    checkpoints_.wait();
  } catch (const base::Error& e) {
    env_.log.warning("train", "checkpoint_failed", {{"step", steps_.state().step}, {"error", e.message()}});
  }
}

void Trainer::after_step(bool last, bool stopping) {
  const auto due = [&](int64_t every) { return every > 0 && steps_.state().step % every == 0; };
  const bool saves = due(config_.checkpoint.every) || last || stopping;
  if (evaluator_ && (due(config_.eval.every) || (last && config_.eval.at_end))) {
    try {
      evaluate();
    } catch (const base::Error&) {
      if (saves) save_before_error();
      throw;
    }
  }
  if (saves) checkpoints_.save(score());
  checkpoints_.poll();
}

RunResult Trainer::run(const std::function<bool()>& stop) {
  start_ns_ = env_.clock.now_ns();
  start_run();
  RunResult result;
  result.reason = "done";
  if (evaluator_ && config_.eval.at_start && steps_.state().step == 0) evaluate();
  while (steps_.state().step < steps_.total()) {
    StepRecord record = steps_.next();
    watch_ranks(record);
    const bool last = steps_.state().step == steps_.total();
    const bool stopping = steps_.share(record, stop()) && !last;
    log_->step(record);
    judge(record);
    log_->progress(record, steps_.total(), last || stopping || steps_.state().step == 1);
    after_step(last, stopping);
    if (!stopping) continue;
    result.interrupted = true;
    result.reason = "interrupted";
    break;
  }
  finish(result);
  return result;
}

void Trainer::finish(RunResult& result) {
  log_->end_line();
  checkpoints_.wait();
  const bool is_lost = result.interrupted && !checkpoints_.is_saved();
  if (is_lost) result.reason = "interrupted without a checkpoint";
  result.state = steps_.state();
  result.last_eval = last_eval_;
  const double seconds = static_cast<double>(env_.clock.now_ns() - start_ns_) * 1e-9;
  log_->event("end", Json::object({{"reason", result.reason},
                                   {"step", steps_.state().step},
                                   {"seconds", seconds},
                                   {"peak_bytes", base::peak_resident_bytes()}}));
  if (ranks_.is_leader() && config_.log.jsonl && config_.log.report) write_report(directory_);
  if (is_lost) checkpoints_.require_saved();
}

}  // namespace trireme::train

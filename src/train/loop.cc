// The training loop: one step after another, with logs, evaluations and checkpoints between them.
#include "train/loop.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "base/report/rate.h"
#include "base/files/file.h"
#include "base/machine/memory.h"
#include "base/report/svg_plot.h"
#include "train/flop.h"
#include "train/report/report.h"
#include "train/checkpoint/weights.h"

namespace trireme::train {
namespace {

using base::Json;

double ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

std::string mebibytes(int64_t bytes) {
  return base::concat(base::format_number(static_cast<double>(bytes) / 1048576.0, 1), " MiB");
}

/// ZeRO 2 and 3 reduce the gradients of every micro-batch over the ranks, so these take neighbours of the
/// step's order, as TrainSession::own_micro_batch says: the lower levels of the tree of sums are reductions.
bool is_interleaved(const passes::Strategy& parallel) { return parallel.zero >= 2; }

data::LoaderOptions loader_options(const TrainConfig& c, const BatchPlan& batch, const Ranks& ranks) {
  data::LoaderOptions o;
  o.batch = batch.micro;
  o.global_batch = batch.global;
  o.rank = ranks.data_rank();
  o.world = ranks.data_ranks();
  o.interleave = is_interleaved(c.parallel);
  o.shuffle = c.loader.shuffle;
  o.seed = static_cast<uint64_t>(c.run.seed);
  o.last = c.loader.last;
  o.workers = c.loader.workers;
  o.prefetch = c.loader.prefetch;
  o.ignore_index = c.loss.ignored;
  return o;
}

/// What the run tells is told by the leader.
LogOptions log_options(const LogOptions& options, const Ranks& ranks) {
  if (ranks.is_leader()) return options;
  LogOptions silent = options;
  silent.jsonl = silent.tensorboard = silent.report = false;
  silent.progress = {0};
  return silent;
}

engine::TrainOptions session_options(const TrainConfig& config, const Ranks& ranks) {
  engine::TrainOptions o = config.session_options();
  base::require(config.parallel.mesh().size() == ranks.size(), "section 'parallel' is of ",
                config.parallel.mesh().size(), " ranks, this run has ", ranks.size());
  o.mesh = ranks.mesh();
  return o;
}

/// Whether a rank's number is the largest and the smallest of all.
bool is_common(double mine, double largest, double largest_negative) {
  return std::isnan(mine) ? std::isnan(largest) : mine == largest && mine == -largest_negative;
}

}  // namespace

Trainer::Trainer(const TrainConfig& config, TrainTask task, base::Env env, Ranks ranks)
    : config_(config),
      task_(std::move(task)),
      ranks_(ranks),
      env_(ranks.is_leader() ? env : base::Env{quiet_, env.clock}),
      directory_(config.run.path()),
      batch_(plan_batch(config.batch, ranks.data_ranks())),
      loader_(task_.data, loader_options(config, batch_, ranks), task_.transform, env.clock),
      feeder_(task_.loss, loader_.fields(), config.loader.rules(), task_.target_inputs),
      total_steps_(plan_steps(config.run, loader_.steps_per_epoch())),
      units_(config.schedule.unit == ScheduleUnit::tokens ? feeder_.targets_per_sample() : 1),
      schedule_(config.schedule,
                {.total = total_steps_ * batch_.global * units_, .global_batch = batch_.global}),
      scaler_(config.loss_scale),
      guard_(config.spikes),
      session_(task_.loss, session_options(config, ranks)) {
  base::require(config.spikes.policy != SpikePolicy::rollback || config.checkpoint.every > 0,
                "spikes.policy: rollback needs checkpoint.every");
  base::require(config.loader.last == data::LastBatch::drop || feeder_.has_integer_targets(),
                "loader.last: pad needs integer targets, which say what does not count; use drop");
  drop_weights(task_.loss, session_);
  if (task_.validation == nullptr) return;
  EvaluatorOptions o;
  o.batch = batch_.micro;
  o.max_batches = config.eval.batches;
  o.ignore_index = config.loss.ignored;
  o.threads = config.run.threads;
  o.device = session_.device_name();
  o.workers = config.loader.workers;
  o.feed = config.loader.rules();
  o.target_inputs = task_.target_inputs;
  o.ranks = ranks_;
  evaluator_ = std::make_unique<Evaluator>(task_.loss, task_.validation, task_.validation_transform,
                                           std::move(o), env.clock);
}

Trainer::~Trainer() = default;

/// Measures what the run is held against; says in words what MFU means then.
std::string Trainer::set_product_rate() {
  const passes::Precision precision = config_.parallel.precision.compute;
  if (precision == passes::Precision::fp8) return "not measured for products of fp8";
  if (config_.run.device == "cpu") {
    product_rate_ = measure_product_rate(session_.threads(), precision) * ranks_.size();
    return mfu_definition(product_rate_, session_.threads() * ranks_.size(), precision);
  }
  const std::string on_host = session_.host_operators(shapes(), static_cast<size_t>(batch_.accumulate));
  if (!on_host.empty() && ranks_.is_leader())
    env_.log.warning("train", "host_fallback", {{"operators", on_host}});
  product_rate_ = session_.device_product_rate().value_or(0) * ranks_.size();
  if (product_rate_ == 0) return "not measured on this device";
  return base::concat("3 x forward flop of the model / (step time x ",
                      base::format_number(product_rate_ * 1e-12, 0),
                      " Tflop/s measured for square products in the type of the run)");
}

void Trainer::start_run() {
  RankStates& kept = states();
  const auto& outputs = task_.loss.output_names();
  has_accuracy_ = std::find(outputs.begin(), outputs.end(), "correct") != outputs.end();
  if (ranks_.is_leader()) {
    std::filesystem::create_directories(directory_);
    base::write_file_atomic(directory_ + "/config.yaml", base::to_yaml(task_.config));
  }
  // Before the log is cut back to where the run goes on.
  const LostWork lost = ranks_.is_leader()
                            ? work_after(directory_ + "/log.jsonl", state_.step, env_.clock.wall_ns())
                            : LostWork{};
  log_ = std::make_unique<RunLog>(log_options(config_.log, ranks_), directory_, state_.step, env_);
  writer_ = std::make_unique<CheckpointWriter>(
      CheckpointWriterOptions{.root = directory_ + "/checkpoints",
                              .keep = config_.checkpoint.keep,
                              .keep_best = config_.checkpoint.keep_best,
                              .asynchronous = config_.checkpoint.asynchronous,
                              .resumed_step = state_.step},
      files_, ranks_);
  flop_per_step_ =
      3 * forward_flop(task_.loss, shapes()) * static_cast<double>(batch_.accumulate * batch_.ranks);
  const std::string mfu = set_product_rate();
  const int64_t staging = kept.bytes();
  const int64_t free = files_.free_bytes(directory_);
  env_.log.info("train", "start",
                {{"steps", total_steps_},
                 {"batch", batch_.text()},
                 {"ranks", ranks_.size()},
                 {"steps_per_epoch", loader_.steps_per_epoch()},
                 {"states", mebibytes(session_.states().bytes())},
                 {"checkpoint_staging", mebibytes(staging)},
                 {"threads", session_.threads()},
                 {"schedule", schedule_.describe()},
                 {"mfu", mfu}});
  if (free >= 0 && free < 2 * staging) {
    env_.log.warning("train", "disk_short", {{"free", mebibytes(free)}, {"checkpoint", mebibytes(staging)}});
  }
  Json event = Json::object({{"name", config_.run.name},
                             {"step", state_.step},
                             {"config", task_.config},
                             {"optimizer", session_.optimizer_text()},
                             {"precision", session_.precision_text()},
                             {"feed", feeder_.text()},
                             {"flop_per_step", flop_per_step_},
                             {"mfu_definition", mfu}});
  if (config_.parallel.pp > 1)
    event.set("pipeline", session_.pipeline_text(shapes(), static_cast<size_t>(batch_.accumulate)));
  log_->event("start", event);
  if (!resumed_from_.empty()) tell_restart(lost);
}

/// What the end of the process before this one cost.
void Trainer::tell_restart(const LostWork& lost) {
  env_.log.info("train", "restarted",
                {{"from", resumed_from_},
                 {"step", state_.step},
                 {"ranks", ranks_.size()},
                 {"ranks_before", ranks_before_},
                 {"lost_steps", lost.steps},
                 {"lost_s", base::format_number(lost.seconds, 2)},
                 {"down_s", base::format_number(lost.down_seconds, 2)}});
  log_->event("restarted", Json::object({{"step", state_.step},
                                         {"from", resumed_from_},
                                         {"ranks", ranks_.size()},
                                         {"ranks_before", ranks_before_},
                                         {"lost_steps", lost.steps},
                                         {"lost_seconds", lost.seconds},
                                         {"down_seconds", lost.down_seconds}}));
}

std::vector<engine::Feeds> Trainer::next_batches(StepRecord& record) {
  std::vector<engine::Feeds> feeds;
  int64_t wait_ns = 0;
  std::array<int64_t, 2> seen{};  // targets and samples, of all data-parallel ranks in the end
  for (int64_t i = 0; i < batch_.accumulate; ++i) {
    const std::optional<data::Batch> batch = loader_.next();
    base::check(batch.has_value(), "the data ended");
    wait_ns += batch->wait_ns;
    seen[0] += feeder_.count_targets(*batch, config_.loss.ignored);
    seen[1] += batch->valid_rows;
    feeds.push_back(feeder_.feeds(*batch));
  }
  ranks_.data_sum(seen);
  record.targets = seen[0];
  state_.samples += seen[1];
  record.data_wait_ms = ms(wait_ns);
  return feeds;
}

StepRecord Trainer::one_step() {
  const int64_t start = env_.clock.now_ns();
  StepRecord record;
  record.step = ++state_.step;
  const std::vector<engine::Feeds> feeds = next_batches(record);
  const auto targets = static_cast<double>(std::max<int64_t>(record.targets, 1));
  record.lr = schedule_.at(state_.scheduled * units_, batch_.global * units_);
  engine::StepInputs inputs;
  inputs.lr = static_cast<float>(record.lr);
  inputs.step = state_.executed + 1;
  inputs.seed = config_.run.seed;
  inputs.draw = state_.step;
  record.loss_scale = config_.is_scaled() ? scaler_.scale() : 1;
  inputs.loss_weight = static_cast<float>(record.loss_scale / targets);
  inputs.grad_scale = static_cast<float>(1 / record.loss_scale);
  inputs.norm_limit = static_cast<float>(guard_.norm_limit());
  inputs.loss_limit = static_cast<float>(guard_.loss_limit());
  const engine::StepResult result = session_.step(feeds, inputs);
  base::check(result.count <= 0 || static_cast<int64_t>(result.count) == record.targets, "the data holds ",
              record.targets, " valid targets, the loss counted ", result.count);
  record.loss = result.loss_sum / targets;
  if (has_accuracy_) record.accuracy = result.correct / targets;
  record.grad_norm = result.grad_norm;
  record.skipped = result.skipped;
  record.forward_ms = ms(result.forward_ns);
  record.backward_ms = ms(result.backward_ns);
  record.update_ms = ms(result.update_ns);
  record.communication_ms = ms(result.communication_ns);
  record.exposed_ms = ms(result.exposed_ns);
  if (config_.parallel.pp > 1) {
    record.bubble = result.bubble;
    record.expected_bubble = result.expected_bubble;
  }
  const data::Position at = loader_.position();
  state_.epoch = at.epoch;
  state_.consumed = at.consumed;
  state_.targets += record.targets;
  // A spike that was left out says nothing about the scale.
  if (config_.is_scaled()) scaler_.update(result.skipped && !std::isfinite(result.grad_norm));
  if (!result.skipped) {
    ++state_.executed;
    state_.scheduled += batch_.global;
  }
  record.samples = state_.samples;
  record.epoch = static_cast<double>(at.epoch) +
                 static_cast<double>(at.consumed) / static_cast<double>(loader_.samples_per_epoch());
  record.step_ms = ms(env_.clock.now_ns() - start);
  return record;
}

/// Makes the record that of all ranks: times of the slowest. Gives whether any rank was told to stop. Throws
/// internal if the ranks do not agree on how the step went: their weights would drift apart.
bool Trainer::share(StepRecord& r, bool stopping) const {
  const double skipped = r.skipped ? 1 : 0;
  std::array<double, 7> known{r.loss,  -r.loss,  r.grad_norm,         -r.grad_norm,
                              skipped, -skipped, stopping ? 1.0 : 0.0};
  constexpr std::array kTimes{&StepRecord::data_wait_ms, &StepRecord::forward_ms,
                              &StepRecord::backward_ms,  &StepRecord::update_ms,
                              &StepRecord::step_ms,      &StepRecord::communication_ms,
                              &StepRecord::exposed_ms};
  std::array<double, known.size() + kTimes.size()> all{};
  std::copy(known.begin(), known.end(), all.begin());
  for (size_t i = 0; i < kTimes.size(); ++i) all[known.size() + i] = r.*kTimes[i];
  ranks_.max(all);
  base::check(is_common(r.loss, all[0], all[1]) && is_common(r.grad_norm, all[2], all[3]) &&
                  is_common(skipped, all[4], all[5]),
              "ranks disagree on step ", r.step, ": here loss ", r.loss, ", gradient norm ", r.grad_norm,
              ", largest ", all[0], ", ", all[2]);
  for (size_t i = 0; i < kTimes.size(); ++i) r.*kTimes[i] = all[known.size() + i];
  const double seconds = r.step_ms * 1e-3;
  r.samples_per_s = static_cast<double>(batch_.global) / seconds;
  // A step above the ceiling did less than was counted (convolutions by Winograd): it has no MFU.
  r.mfu = base::Rate(flop_per_step_, seconds, {product_rate_, "products"}).share().value_or(-1);
  return all[6] > 0;
}

/// `own`: this rank's step, before share().
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
  if (std::isfinite(record.loss) && std::isfinite(record.grad_norm)) {
    state_.skips_in_row = 0;
    judge_spike(record);
    return;
  }
  ++state_.skips_in_row;
  log_->end_line();
  env_.log.warning("train", "step_skipped",
                   {{"step", record.step},
                    {"loss", record.loss},
                    {"grad_norm", record.grad_norm},
                    {"in_row", state_.skips_in_row}});
  // Skipping is how a loss scale is found; it is no failure until the scale cannot fall further.
  const bool is_search = config_.is_scaled() && !scaler_.is_exhausted();
  if (is_search && state_.skips_in_row < config_.run.max_skips) return;
  if (config_.run.non_finite == NonFinite::skip && state_.skips_in_row < config_.run.max_skips) return;
  base::fail(base::ErrorCode::unavailable, "step ", record.step, ": loss ", record.loss, ", gradient norm ",
             record.grad_norm, "; ", state_.skips_in_row,
             " steps in a row were left out (run.non_finite, run.max_skips); try a lower schedule.lr or "
             "optimizer.clip_norm");
}

void Trainer::judge_spike(const StepRecord& record) {
  const SpikeVerdict verdict = guard_.observe(record.loss, record.grad_norm);
  if (!verdict.reason.empty()) {
    log_->end_line();
    env_.log.warning("train", "spike", {{"step", record.step}, {"reason", verdict.reason}});
  }
  if (verdict.action == SpikeAction::rollback) roll_back();
  base::require(verdict.action != SpikeAction::stop, "step ", record.step, ": ", verdict.reason,
                "; spikes.policy is stop");
}

/// The newest checkpoint of the regular rhythm: one that a signal made more would make a resumed run differ.
std::string Trainer::rollback_target() const {
  const std::string root = directory_ + "/checkpoints";
  const std::vector<std::string> names = list_checkpoints(root);
  for (size_t i = names.size(); i-- > 0;) {
    const int64_t step = load_checkpoint_meta(root + "/" + names[i]).step;
    if (step < state_.step && step % config_.checkpoint.every == 0) return root + "/" + names[i];
  }
  return find_checkpoint(root);
}

/// Weights, moments, schedule and guard as in the last checkpoint; the data goes on behind the spike.
void Trainer::roll_back() {
  if (const auto outcome = writer_->wait()) take(*outcome);
  const std::string path = ranks_.from_leader(ranks_.is_leader() ? rollback_target() : "");
  const RunState now = state_;
  restore(*open_checked(path));
  const RunState past = state_;
  state_ = now;
  state_.executed = past.executed;
  state_.scheduled = past.scheduled;
  loader_.seek({now.epoch, now.consumed});
  env_.log.warning("train", "rolled_back", {{"step", now.step}, {"to", path}});
  log_->event("rollback", Json::object({{"step", now.step}, {"to", past.step}}));
}

EvalRecord Trainer::evaluate() {
  log_->end_line();
  const EvalRecord record =
      evaluator_->run(session_.trained_graph(config_.eval.average), state_.step,
                      [&](const engine::PreparedModel& model) { session_.lend_weights(model); });
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

/// Higher is better; NaN when the state of this step was not evaluated.
double Trainer::score() const {
  if (!last_eval_ || last_eval_->step != state_.step) return NAN;
  return config_.checkpoint.metric == Metric::accuracy && last_eval_->accuracy >= 0 ? last_eval_->accuracy
                                                                                    : -last_eval_->loss;
}

/// Collective the first time, and the session is prepared then: its optimizer's states exist.
RankStates& Trainer::states() {
  if (states_ == nullptr) {
    session_.prepare(shapes(), static_cast<size_t>(batch_.accumulate));
    states_ = std::make_unique<RankStates>(session_.states(), ranks_);
  }
  return *states_;
}

/// Everything of a checkpoint but its tensors.
Checkpoint Trainer::head() const {
  Json meta = Json::object({{"name", config_.run.name},
                            {"state", state_.to_json()},
                            {"seed", config_.run.seed},
                            {"global_batch", batch_.global},
                            {"ranks", ranks_.size()},
                            {"data_fingerprint", std::to_string(loader_.fingerprint())},
                            {"data_samples", loader_.dataset().size()},
                            {"loss_scaler", scaler_.state()},
                            {"spike_guard", guard_.state()},
                            {"config", task_.config}});
  return {state_.step, std::move(meta), {}};
}

/// Opens a checkpoint on every rank, each of which checks its share of the checksums. Throws on every rank
/// what went wrong on one.
std::unique_ptr<CheckpointReader> Trainer::open_checked(const std::string& path) const {
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

void Trainer::restore(const CheckpointReader& checkpoint) {
  const Json& meta = checkpoint.meta();
  base::require(meta.at("seed").as_int() == config_.run.seed, "the checkpoint's seed is ",
                meta.at("seed").as_int(), ", run.seed is ", config_.run.seed);
  base::require(meta.at("data_fingerprint").as_string() == std::to_string(loader_.fingerprint()),
                "the checkpoint is of other data: it had ", meta.at("data_samples").as_int(),
                " samples, now there are ", loader_.dataset().size());
  states().check(checkpoint);
  states().load(checkpoint);
  session_.states_changed();
  state_ = RunState::from_json(meta.at("state"));
  scaler_.restore(meta.at("loss_scaler"));
  guard_.restore(meta.at("spike_guard"));
  loader_.seek({state_.epoch, state_.consumed});
  saved_step_ = state_.step;
}

void Trainer::resume(const std::string& path) {
  const std::string found = ranks_.from_leader(ranks_.is_leader() ? find_checkpoint(path) : "");
  const auto checkpoint = open_checked(found);
  try {
    restore(*checkpoint);
  } catch (const base::Error& e) {
    throw e.with("resume from '" + found + "'");
  }
  resumed_from_ = found;
  ranks_before_ = checkpoint->meta().get_or<int64_t>("ranks", 1);
}

/// Checkpoints of the run directory, the one to try first at the end; the leader's view.
std::vector<std::string> Trainer::candidates() const {
  std::string lines;
  if (ranks_.is_leader()) {
    const std::string root = directory_ + "/checkpoints";
    std::vector<std::string> names = list_checkpoints(root);
    if (base::file_exists(root + "/latest")) {
      std::string latest = base::read_file(root + "/latest", 4096);
      while (!latest.empty() && latest.back() == '\n') latest.pop_back();
      if (std::erase(names, latest) > 0)
        names.push_back(latest);  // a name that leads elsewhere is none of them
    }
    for (const std::string& name : names) {
      if (base::file_exists(root + "/" + name + "/index.json")) lines += root + "/" + name + "\n";
    }
  }
  return lines_of(ranks_.from_leader(lines));
}

bool Trainer::resume_auto() {
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

void Trainer::take(const CheckpointOutcome& outcome) {
  log_->end_line();
  if (outcome.error) {
    env_.log.warning("train", "checkpoint_failed",
                     {{"step", outcome.step}, {"error", outcome.error->message()}});
    if (!outcome.committed && config_.checkpoint.on_error == OnError::stop) {
      throw outcome.error->with("checkpoint.on_error is stop; the last complete checkpoint is unharmed");
    }
    return;
  }
  log_->event(
      "checkpoint",
      Json::object({{"step", outcome.step}, {"bytes", outcome.written.bytes}, {"seconds", outcome.seconds}}));
  env_.log.info("train", "checkpoint",
                {{"path", outcome.written.path},
                 {"size", mebibytes(outcome.written.bytes)},
                 {"seconds", outcome.seconds}});
}

void Trainer::save(double score) {
  if (saved_step_ == state_.step) return;
  log_->flush();  // lines up to this step must be there when the checkpoint is
  const int64_t start = env_.clock.now_ns();
  if (const auto before = writer_->save(head(), states().pieces(), score)) take(*before);
  stall_s_ = static_cast<double>(env_.clock.now_ns() - start) * 1e-9;
  saved_step_ = state_.step;
}

void Trainer::after_step(bool last, bool stopping) {
  const auto due = [&](int64_t every) { return every > 0 && state_.step % every == 0; };
  if (evaluator_ && (due(config_.eval.every) || (last && config_.eval.at_end))) evaluate();
  if (due(config_.checkpoint.every) || last || stopping) save(score());
  if (const auto outcome = writer_->poll()) take(*outcome);
}

RunResult Trainer::run(const std::function<bool()>& stop) {
  start_ns_ = env_.clock.now_ns();
  start_run();
  RunResult result;
  result.reason = "done";
  if (evaluator_ && config_.eval.at_start && state_.step == 0) evaluate();
  while (state_.step < total_steps_) {
    StepRecord record = one_step();
    watch_ranks(record);
    const bool last = state_.step == total_steps_;
    const bool stopping = share(record, stop()) && !last;
    log_->step(record);
    judge(record);
    log_->progress(record, total_steps_, last || stopping || state_.step == 1);
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
  if (const auto outcome = writer_->wait()) take(*outcome);
  result.state = state_;
  result.last_eval = last_eval_;
  const double seconds = static_cast<double>(env_.clock.now_ns() - start_ns_) * 1e-9;
  log_->event("end", Json::object({{"reason", result.reason},
                                   {"step", state_.step},
                                   {"seconds", seconds},
                                   {"peak_bytes", base::peak_resident_bytes()}}));
  if (ranks_.is_leader() && config_.log.jsonl && config_.log.report) write_report(directory_);
}

}  // namespace trireme::train

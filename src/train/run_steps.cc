// The steps of a run: their input, their result, and the position of the run after each.
#include "train/run_steps.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/report/rate.h"
#include "base/report/svg_plot.h"
#include "train/flop.h"

namespace trireme::train {
namespace {

double ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

/// ZeRO 2 and 3 reduce the gradients of every micro-batch over the ranks, so ranks take adjacent ones of a
/// step (TrainSession::own_micro_batch): the lower levels of the summation tree are then reductions.
bool is_interleaved(const passes::Strategy& parallel) { return parallel.zero >= 2; }

data::LoaderOptions training_loader(const TrainConfig& c, const BatchPlan& batch, const Ranks& ranks,
                                    std::vector<std::string> fields) {
  data::LoaderOptions o;
  o.fields = std::move(fields);
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

/// Chooses among all fields of the data. The loader that trains has only the chosen ones, so that samples may
/// lack the others.
Feeder feeder_for(const TrainConfig& c, const TrainTask& task, const BatchPlan& batch, const Ranks& ranks,
                  base::Clock& clock) {
  const data::Loader all(task.data, training_loader(c, batch, ranks, {}), task.transform, clock);
  return {task.loss, all.fields(), c.loader.rules(), task.target_inputs};
}

engine::TrainOptions session_options(const TrainConfig& config, const Ranks& ranks) {
  engine::TrainOptions o = config.session_options();
  base::require(config.parallel.mesh().size() == ranks.size(), "section 'parallel' is of ",
                config.parallel.mesh().size(), " ranks, this run has ", ranks.size());
  o.mesh = ranks.mesh();
  return o;
}

/// Whether a rank's number equals both the largest and the smallest of all ranks.
bool is_common(double mine, double largest, double largest_negative) {
  return std::isnan(mine) ? std::isnan(largest) : mine == largest && mine == -largest_negative;
}

/// Whether the loss counted as many targets as the data holds. It counts in f32, whose sums are exact up to
/// 2^24; above, every sum over micro-batches and ranks may round.
bool counts_agree(double counted, int64_t targets) {
  const auto wanted = static_cast<double>(targets);
  return std::abs(counted - wanted) <= (wanted <= 0x1p24 ? 0 : wanted * 0x1p-16);
}

}  // namespace

RunSteps::RunSteps(const TrainConfig& config, const TrainTask& task, const Ranks& ranks, base::Clock& clock)
    : config_(config),
      ranks_(ranks),
      clock_(clock),
      batch_(plan_batch(config.batch, ranks.data_ranks())),
      feeder_(feeder_for(config, task, batch_, ranks, clock)),
      loader_(task.data, training_loader(config, batch_, ranks, feeder_.fields()), task.transform, clock),
      total_steps_(plan_steps(config.run, loader_.steps_per_epoch())),
      units_(config.schedule.unit == ScheduleUnit::tokens ? feeder_.targets_per_sample() : 1),
      schedule_(config.schedule,
                {.total = total_steps_ * batch_.global * units_, .global_batch = batch_.global}),
      scaler_(config.loss_scale),
      guard_(config.spikes),
      session_(task.loss, session_options(config, ranks)) {
  base::require(config.loader.last == data::LastBatch::drop || feeder_.has_integer_targets(),
                "loader.last: pad needs a loss of integer targets (cross_entropy, detection), which say what "
                "does not count; use drop");
  const auto& outputs = task.loss.output_names();
  has_accuracy_ = std::find(outputs.begin(), outputs.end(), "correct") != outputs.end();
}

std::string RunSteps::measure_rates(const TrainTask& task) {
  flop_per_step_ =
      3 * forward_flop(task.loss, shapes()) * static_cast<double>(batch_.accumulate * batch_.ranks);
  const passes::Precision precision = config_.parallel.precision.compute;
  if (precision == passes::Precision::fp8) return "not measured for products of fp8";
  if (config_.run.device == "cpu") {
    product_rate_ = measure_product_rate(session_.threads(), precision) * ranks_.size();
    return mfu_definition(product_rate_, session_.threads() * ranks_.size(), precision);
  }
  product_rate_ = session_.device_product_rate().value_or(0) * ranks_.size();
  if (product_rate_ == 0) return "not measured on this device";
  return base::concat("3 x forward flop of the model / (step time x ",
                      base::format_number(product_rate_ * 1e-12, 0),
                      " Tflop/s measured for square products in the type of the run)");
}

std::vector<engine::Feeds> RunSteps::next_batches(StepRecord& record) {
  std::vector<engine::Feeds> feeds;
  int64_t wait_ns = 0;
  std::array<int64_t, 2> seen{};  // targets and samples, finally those of all data-parallel ranks
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

StepRecord RunSteps::next() {
  const int64_t start = clock_.now_ns();
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
  base::check(result.count <= 0 || counts_agree(result.count, record.targets), "the data holds ",
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
  // A skipped spike tells nothing about the scale.
  if (config_.is_scaled()) scaler_.update(result.skipped && !std::isfinite(result.grad_norm));
  if (!result.skipped) {
    ++state_.executed;
    state_.scheduled += batch_.global;
  }
  record.samples = state_.samples;
  record.epoch = static_cast<double>(at.epoch) +
                 static_cast<double>(at.consumed) / static_cast<double>(loader_.samples_per_epoch());
  record.step_ms = ms(clock_.now_ns() - start);
  return record;
}

bool RunSteps::share(StepRecord& r, bool stopping) const {
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
  // A step above the ceiling did less work than was counted (Winograd convolutions), so it has no MFU.
  r.mfu = base::Rate(flop_per_step_, seconds, {product_rate_, "products"}).share().value_or(-1);
  return all[6] > 0;
}

SpikeVerdict RunSteps::judge(const StepRecord& record) {
  if (!std::isfinite(record.loss) || !std::isfinite(record.grad_norm)) {
    ++state_.skips_in_row;
    return {};
  }
  state_.skips_in_row = 0;
  return guard_.observe(record.loss, record.grad_norm);
}

void RunSteps::describe(base::Json& meta) const {
  meta.set("state", state_.to_json());
  meta.set("seed", config_.run.seed);
  meta.set("global_batch", batch_.global);
  meta.set("ranks", ranks_.size());
  meta.set("data_fingerprint", std::to_string(loader_.fingerprint()));
  meta.set("data_samples", loader_.dataset().size());
  meta.set("loss_scaler", scaler_.state());
  meta.set("spike_guard", guard_.state());
}

void RunSteps::check(const base::Json& meta) const {
  base::require(meta.at("seed").as_int() == config_.run.seed, "the checkpoint's seed is ",
                meta.at("seed").as_int(), ", run.seed is ", config_.run.seed);
  const int64_t had = meta.at("data_samples").as_int(), have = loader_.dataset().size();
  base::require(meta.at("data_fingerprint").as_string() == std::to_string(loader_.fingerprint()),
                "the checkpoint is of other data: it had ", had, " samples, now there are ", have,
                had == have ? " of other content" : "");
  const auto before = meta.get_or<int64_t>("global_batch", batch_.global);
  if (before != batch_.global) check_batch(before, RunState::from_json(meta.at("state")));
}

/// Refuses a run that cannot go on in `past` with steps of another batch than the `before` samples it had.
void RunSteps::check_batch(int64_t before, const RunState& past) const {
  base::require(past.consumed % batch_.global == 0,
                "no step begins where the checkpoint stands: batch.global is ", batch_.global, " and was ",
                before, ", samples of the epoch so far are ", past.consumed);
  base::require(config_.run.steps == 0 || !schedule_.is_as_long_as_the_run(),
                "another batch.global makes run.steps another number of samples, and with it every learning "
                "rate of a schedule that is as long as the run; state schedule.total: it was ",
                config_.run.steps * before * units_, "; batch.global is ", batch_.global, " and was ",
                before);
}

void RunSteps::restore(const base::Json& meta) {
  state_ = RunState::from_json(meta.at("state"));
  scaler_.restore(meta.at("loss_scaler"));
  guard_.restore(meta.at("spike_guard"));
  loader_.seek({state_.epoch, state_.consumed});
  if (config_.run.steps > 0) return;
  // Where the batch changed, steps so far do not say how much of the data is done: the position does.
  const int64_t done = state_.epoch * loader_.steps_per_epoch() + state_.consumed / batch_.global;
  const int64_t planned = plan_steps(config_.run, loader_.steps_per_epoch());
  total_steps_ = state_.step + std::max<int64_t>(0, planned - done);
}

void RunSteps::roll_back(const base::Json& meta) {
  const RunState past = RunState::from_json(meta.at("state"));
  state_.executed = past.executed;
  state_.scheduled = past.scheduled;
  scaler_.restore(meta.at("loss_scaler"));
  guard_.restore(meta.at("spike_guard"));
}

}  // namespace trireme::train

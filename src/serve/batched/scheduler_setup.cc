// Configures the scheduler of a batched model.
#include "serve/batched/scheduler_setup.h"

#include <algorithm>
#include <utility>

#include "base/machine/cpu_info.h"
#include "serve/config/run_config.h"
#include "serve/models/follow_key.h"

namespace trireme::serve {
namespace {

using tensor::Tensor;

/// Whether how long a run takes may be up to the values of its inputs.
bool has_control_flow(const ir::Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const ir::Node& node) { return node.op->schema.is_control; });
}

class Setup {
 public:
  Setup(const ModelSource& source, const BatchedParts& parts, const ModelHost& host)
      : source_(source), parts_(parts), config_(parts.config), host_(host) {}
  sched::SchedulerOptions options() const;

 private:
  void share_machine(sched::SchedulerOptions& out, const RunConfig& run) const;
  void bound_queue(sched::SchedulerOptions& out) const;
  std::vector<Tensor> idle_row() const;
  std::vector<sched::WarmUp> warm_up(const std::vector<int64_t>& rows) const;
  void add_warmups(std::vector<sched::WarmUp>& list) const;

  const ModelSource& source_;
  const BatchedParts& parts_;
  const ModelConfig& config_;
  const ModelHost& host_;
};

/// Sets devices, threads and processors of the instances, and what limits them or keeps them awake.
void Setup::share_machine(sched::SchedulerOptions& out, const RunConfig& run) const {
  const ServeOptions& options = host_.options;
  const base::CpuInfo cpu = base::read_cpu_info();
  out.limiter = host_.limiter;
  out.halt_polling = host_.halt_polling;
  out.claims = config_.claims();
  out.devices = config_.devices();
  const int threads = run.threads > 0 ? run.threads : options.threads;
  out.session.threads = threads > 0 ? threads : std::max(1, cpu.threads() / out.instances);
  out.session.device = options.device;
  out.session.strategy = strategy_of(run, options);
  out.session.service = options.service;
  out.session.model_key = FollowKey{.path = source_.path,
                                    .parameters = config_.parameters,
                                    .kept_outputs = parts_.kept_outputs,
                                    .load = parts_.load_number}
                              .text();
  out.pin = options.pin;
  out.cpus = cpu.allowed;
}

/// Each priority level has a queue of its own, so that the requests of one never keep out those of another.
void Setup::bound_queue(sched::SchedulerOptions& out) const {
  constexpr size_t kMost = size_t{1} << 40;  // of one level and of all: sums stay within a number
  const auto most = static_cast<size_t>(host_.options.max_queue);
  const auto own = static_cast<size_t>(config_.queue.max_queue_size);
  out.max_queue = own > 0 ? own : most;
  if (config_.priority_levels == 0) return;
  size_t all = 0;
  bool is_bounded = true;
  for (uint64_t level = 1; level <= config_.priority_levels; ++level) {
    const auto size = std::min(static_cast<size_t>(config_.queue_of(level).max_queue_size), kMost);
    is_bounded = is_bounded && size > 0;
    all = std::min(all + size, kMost);
    if (size > 0) out.level_queue[static_cast<uint32_t>(level)] = size;
  }
  out.max_queue = is_bounded ? all : std::max(all, most);
}

sched::SchedulerOptions Setup::options() const {
  const ServeOptions& options = host_.options;
  const RunConfig run = RunConfig::of(config_.parameters);
  sched::SchedulerOptions out;
  const bool is_batched = config_.is_batched();
  const bool merges = is_batched && (config_.has_dynamic_batching || config_.sequence);
  out.limits.max_rows = is_batched ? *config_.max_batch_size : 1;
  // A model with batched inputs but without dynamic batching runs each request by itself.
  if (merges) {
    out.limits.window_ns = config_.max_queue_delay_us ? *config_.max_queue_delay_us * base::kNsPerUs
                                                      : run.window_ns.value_or(options.batch_window.ns);
    out.limits.preferred = config_.preferred_batch_size;
    out.is_window_adaptive = !config_.max_queue_delay_us;  // a delay that the config states is kept exactly
    out.limits.others_end_window =
        config_.max_queue_delay_us && parts_.padding.length_buckets.empty() && !parts_.text;
    if (config_.sequence) {
      out.limits.window_ns = config_.sequence->queue_delay_us.value_or(0) * base::kNsPerUs;
      out.limits.preferred = config_.sequence->preferred;
      out.is_window_adaptive = false;
    }
  }
  // An explicit request to wait is honoured; otherwise, a model that costs less than a hand-over between
  // threads (two wake-ups: 20 to 40 us) runs on the thread that read its request.
  const bool asks_to_wait = config_.max_queue_delay_us || !config_.preferred_batch_size.empty();
  const int64_t p99_ns = run.p99_ns.value_or(options.slo_p99.ns);
  base::require(
      !run.p99_ns || *run.p99_ns == 0 || (merges && !config_.sequence && !asks_to_wait),
      "parameter slo_p99 finds the window and the sizes of batches: it needs dynamic_batching without "
      "preferred_batch_size and max_queue_delay_microseconds");
  if (merges && !config_.sequence && !asks_to_wait) out.p99_ns = p99_ns;
  out.runs_whole = run.runs_whole.value_or(options.whole_batches);
  out.hang_ns = options.runs.instance_timeout.ns;
  out.has_loops = has_control_flow(parts_.prepared->graph());
  out.loop_ns = run.loop_ns.value_or(options.runs.loop_timeout.ns);
  // A loop that goes on is no instance that hangs: it ends before the watchdog gives the instance up.
  if (out.hang_ns > 0) out.loop_ns = std::min(out.loop_ns, out.hang_ns / 2);
  if (!asks_to_wait && !config_.sequence) out.inline_ns = 30 * base::kNsPerUs;
  out.padding.is_batched = is_batched;
  out.padding.is_shown = parts_.padding.is_shown;
  if (is_batched) {
    out.padding.row_buckets =
        data::buckets_up_to(run.buckets.empty() ? options.buckets : run.buckets, out.limits.max_rows);
  }
  if (!parts_.padding.length_buckets.empty()) {
    const std::vector<int64_t> row_buckets = std::move(out.padding.row_buckets);
    out.padding = parts_.padding;
    out.padding.row_buckets = row_buckets;
  }
  if (parts_.text) {
    out.padding.length_buckets = parts_.text->buckets();
    out.padding.padded_inputs = parts_.text->padded_inputs();
  }
  bound_queue(out);
  out.hold_until = static_cast<size_t>(options.delay_scheduler);
  out.instances = config_.instances;
  out.is_fair = host_.tenants.is_on();
  out.places_rows = config_.sequence && !config_.sequence->is_oldest;
  if (parts_.layout && is_batched) out.padding.idle_row = idle_row();
  out.preserves_order = config_.preserves_order;
  share_machine(out, run);
  out.warm_up = warm_up(out.padding.row_buckets);
  add_warmups(out.warm_up);
  if (out.p99_ns > 0) {
    for (sched::WarmUp& w : out.warm_up) w.is_run = true;  // measures every size before the first request
  }
  out.session.max_programs = 64 + out.warm_up.size() * std::max<size_t>(1, out.padding.row_buckets.size());
  if (is_batched && !merges) out.limits.max_rows = 1;
  return out;
}

/// Inputs for a row without a sequence: READY is false. Empty if an extent is open.
std::vector<Tensor> Setup::idle_row() const {
  std::vector<Tensor> row;
  for (const TensorConfig& t : config_.inputs) {
    tensor::Dims dims = t.model_dims();
    if (!t.type || std::find(dims.begin(), dims.end(), -1) != dims.end()) return {};
    dims.insert(dims.begin(), 1);
    row.push_back(Tensor::zeros(*t.type, dims));
  }
  return parts_.layout->assemble(std::move(row), {.is_ready = false}, parts_.layout->initial_states());
}

/// Adds the requests of model_warmup to those that --warm-up prepares.
void Setup::add_warmups(std::vector<sched::WarmUp>& list) const {
  base::require(config_.warmups.empty() || !parts_.text, "model_warmup of an encoder: use --warm-up run");
  for (const WarmupConfig& w : config_.warmups) {
    base::require(!config_.is_batched() || (w.batch_size >= 1 && w.batch_size <= *config_.max_batch_size),
                  "model_warmup '", w.name, "': batch_size ", w.batch_size,
                  " is not within 1 and max_batch_size");
    std::vector<Tensor> example;
    for (const TensorConfig& t : config_.inputs) {
      const auto at =
          std::find_if(w.inputs.begin(), w.inputs.end(), [&](const auto& i) { return i.name == t.name; });
      base::require(at != w.inputs.end(), "model_warmup '", w.name, "' has no input '", t.name, "'");
      bool fits = at->type == t.type && at->dims.size() == t.dims.size();
      for (size_t d = 0; fits && d < t.dims.size(); ++d) fits = t.dims[d] == -1 || t.dims[d] == at->dims[d];
      base::require(fits, "model_warmup '", w.name, "': input '", t.name, "' is ", config_type_name(at->type),
                    " ", tensor::to_string(at->dims), ", the model takes ", config_type_name(t.type), " ",
                    tensor::to_string(t.dims));
      try {
        const WireTensor given = warmup_tensor(*at, config_.is_batched(), source_.root);
        StringTable table;
        example.push_back(given.type ? given.values : parts_.strings.enter(given, table));
      } catch (const base::Error& e) {
        throw e.with("model_warmup '" + w.name + "': input '" + t.name + "'");
      }
      if (t.reshape)
        example.back() = example.back().reshaped(model_shape(t, config_.is_batched(), example.back().dims()));
    }
    base::require(w.inputs.size() == config_.inputs.size(), "model_warmup '", w.name,
                  "' names an input that the model does not have");
    if (parts_.layout)
      example = parts_.layout->assemble(std::move(example), {}, parts_.layout->initial_states());
    const int64_t rows = config_.is_batched() ? w.batch_size : 1;
    for (int64_t i = 0; i < w.count; ++i)
      list.push_back({.example = example, .rows = {rows}, .is_run = true});
  }
}

std::vector<sched::WarmUp> Setup::warm_up(const std::vector<int64_t>& rows) const {
  const ServeOptions& options = host_.options;
  std::vector<sched::WarmUp> list;
  if (options.warm_up == WarmUpLevel::none) return list;
  const bool run_all = options.warm_up == WarmUpLevel::run;
  const auto add = [&](std::vector<Tensor> example) {
    if (list.empty() && !run_all) list.push_back({.example = example, .rows = {1}, .is_run = true});
    list.push_back({.example = std::move(example),
                    .rows = rows.empty() ? std::vector<int64_t>{1} : rows,
                    .is_run = run_all});
  };
  if (parts_.text) {
    for (int64_t length : parts_.text->buckets()) add(parts_.text->example(length));
    return list;
  }
  std::vector<Tensor> example;
  for (const TensorConfig& t : config_.inputs) {
    const tensor::Dims* picture = parts_.strings.picture_dims(t.name);
    tensor::Dims dims = picture != nullptr ? *picture : t.model_dims();
    // Clients choose open extents, so there is nothing to prepare.
    if (std::find(dims.begin(), dims.end(), -1) != dims.end()) return list;
    if (config_.is_batched()) dims.insert(dims.begin(), 1);
    example.push_back(Tensor::zeros(t.type ? *t.type : parts_.strings.input_type(t.name), dims));
  }
  if (parts_.layout)
    example = parts_.layout->assemble(std::move(example), {}, parts_.layout->initial_states());
  add(std::move(example));
  for (sched::WarmUp& zeros : list) zeros.is_made_up = true;
  return list;
}

}  // namespace

sched::SchedulerOptions scheduler_options(const ModelSource& source, const BatchedParts& parts,
                                          const ModelHost& host) {
  return Setup(source, parts, host).options();
}

SequenceBatcher::Options sequence_options(const ModelConfig& config, const ServeOptions& options) {
  const int64_t full =
      std::max<int64_t>(1, config.max_batch_size.value_or(0)) * std::max(1, config.instances);
  SequenceBatcher::Options own;
  own.slots =
      static_cast<size_t>(config.sequence->max_candidates > 0 ? config.sequence->max_candidates : full);
  own.max_waiting = static_cast<size_t>(options.max_queue);
  own.idle_ns = config.sequence->idle_us * base::kNsPerUs;
  own.model = config.name;
  own.instances = config.sequence->is_oldest ? 0 : static_cast<size_t>(config.instances);
  own.has_rows = config.is_batched();
  return own;
}

SchedulerWatch::~SchedulerWatch() {
  if (hung_) hung_->gauge->add(-hung_->instances.load());
}

/// Publishes what the scheduler finds by itself, as metrics and in the log.
void SchedulerWatch::attach(sched::SchedulerOptions& out, MetricRegistry& metrics) {
  const MetricLabels labels{{"model", name_}, {"version", version_}};
  const auto gauge = [&](const char* name_of, const char* help) {
    return &metrics.gauge(name_of, help, labels);
  };
  if (out.hang_ns > 0) {
    hung_ = std::make_shared<Hung>();
    hung_->gauge = gauge("trireme_instances_hung", "Instances whose batch does not end");
    out.on_hang = [this](int instance, bool hangs) {
      hung_->gauge->add(hangs ? 1 : -1);
      hung_->instances += hangs ? 1 : -1;
      env_.log.warning("serve", hangs ? "instance_hangs" : "instance_recovered",
                       {{"model", name_}, {"version", version_}, {"instance", instance}});
    };
  }
  if (out.p99_ns == 0) return;
  gauge("trireme_batching_goal_seconds", "Goal of the 99th percentile that batching is tuned for")
      ->set(static_cast<double>(out.p99_ns) * 1e-9);
  auto* window = gauge("trireme_batching_window_seconds", "Longest wait for a fuller batch, as tuned");
  auto* rows = gauge("trireme_batching_max_rows", "Rows of a batch at most, as tuned");
  auto* instances = gauge("trireme_batching_instances", "Instances at work, as tuned");
  auto* p99 = gauge("trireme_batching_predicted_p99_seconds", "99th percentile that the tuning expects");
  rows->set(static_cast<double>(out.limits.max_rows));
  instances->set(out.instances);
  window->set(0);
  const auto last = std::make_shared<sched::BatchSetting>();
  out.on_tuned = [this, window, rows, instances, p99, last](const sched::BatchTuner::Choice& choice) {
    const sched::BatchSetting& s = choice.setting;
    window->set(static_cast<double>(s.window_ns) * 1e-9);
    rows->set(static_cast<double>(s.max_rows));
    instances->set(s.instances);
    p99->set(choice.outlook.p99_ns * 1e-9);
    if (std::exchange(*last, s) == s) return;
    env_.log.info("serve", "batching_tuned",
                  {{"model", name_},
                   {"version", version_},
                   {"window_ms", static_cast<double>(s.window_ns) * 1e-6},
                   {"max_rows", s.max_rows},
                   {"instances", s.instances},
                   {"p99_ms", choice.outlook.p99_ns * 1e-6},
                   {"meets_goal", choice.meets_goal ? "yes" : "no"}});
  };
}

}  // namespace trireme::serve

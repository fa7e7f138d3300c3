// Metrics of one served model.
#include "serve/seeing/model_metrics.h"

#include <algorithm>
#include <cmath>

namespace trireme::serve {
namespace {

constexpr const char* kReasons[] = {"REJECTED", "CANCELED", "BACKEND", "OTHER"};

size_t reason_of(sched::Ending ending) {
  switch (ending) {
    case sched::Ending::refused:
    case sched::Ending::expired: return 0;
    case sched::Ending::cancelled: return 1;
    case sched::Ending::failed: return 2;
    case sched::Ending::done: break;
  }
  return 3;
}

base::Json duration_json(const DurationSum& d) {
  return base::Json::object({{"count", d.count.load()}, {"ns", d.ns.load()}});
}

/// The sum of a histogram of seconds, in ns; a double holds whole nanoseconds up to a hundred days.
uint64_t ns_of(const MetricHistogram& h) { return static_cast<uint64_t>(std::llround(h.sum() * 1e9)); }

base::Json duration_json(const MetricHistogram& h) {
  return base::Json::object({{"count", h.count()}, {"ns", ns_of(h)}});
}

double seconds_between(int64_t begin_ns, int64_t end_ns) {
  return static_cast<double>(std::max<int64_t>(0, end_ns - begin_ns)) * 1e-9;
}

}  // namespace

ModelMetrics::ModelMetrics(MetricRegistry& registry, const MetricLabels& labels, int64_t max_rows,
                           const ModelMetrics* earlier) {
  if (earlier != nullptr) {
    counts_ = earlier->counts_;
    sizes_ = earlier->sizes_;
    busy_ns_ = earlier->busy_ns_;
  }
  while (static_cast<int64_t>(sizes_.size()) < std::min<int64_t>(max_rows, 4096))
    sizes_.push_back(std::make_shared<BatchSize>());
  make_histograms(registry, labels, max_rows);
  registry.counter_from("nv_inference_request_success", "Number of successful inference requests", labels,
                        [h = latency_s_] { return static_cast<double>(h->count()); });
  for (size_t i = 0; i < failures_.size(); ++i) {
    MetricLabels with_reason = labels;
    with_reason.emplace_back("reason", kReasons[i]);
    failures_[i] =
        &registry.counter("nv_inference_request_failure", "Number of failed inference requests", with_reason);
  }
  registry.counter_from("nv_inference_count", "Number of inferences performed (rows of batches)", labels,
                        [h = batch_rows_] { return h->sum(); });
  registry.counter_from("nv_inference_exec_count", "Number of model executions (batches)", labels,
                        [h = batch_rows_] { return static_cast<double>(h->count()); });
  register_durations(registry, labels);
  register_padding(registry, labels);
  const auto cached = [&](const char* name, const char* help, DurationSum Counts::*member, bool is_time) {
    registry.counter_from(name, help, labels, [c = counts_, member, is_time] {
      const DurationSum& sum = (*c).*member;
      return static_cast<double>(is_time ? sum.ns.load() / 1000 : sum.count.load());
    });
  };
  cached("nv_cache_num_hits_per_model", "Number of answers from the cache", &Counts::hit, false);
  cached("nv_cache_num_misses_per_model", "Number of answers that the cache lacked", &Counts::miss, false);
  cached("nv_cache_hit_duration_per_model", "Cumulative time of lookups that hit in microseconds",
         &Counts::hit, true);
  cached("nv_cache_miss_duration_per_model", "Cumulative time of lookups that missed in microseconds",
         &Counts::miss, true);
}

void ModelMetrics::make_histograms(MetricRegistry& registry, const MetricLabels& labels, int64_t max_rows) {
  std::vector<double> rows;
  for (int64_t b = 1; b < 2 * max_rows; b *= 2) rows.push_back(static_cast<double>(b));
  batch_rows_ =
      &registry.histogram("trireme_batch_rows", "Rows of requests in a batch, without padding", rows, labels);
  // 100 us to 80 s in steps of 1.26: ten buckets per decade.
  const std::vector<double> seconds = metric_buckets(1e-4, 1.2589254, 60);
  latency_s_ = &registry.histogram("trireme_request_duration_seconds",
                                   "From a request's last byte to its answer", seconds, labels);
  queue_s_ = &registry.histogram("trireme_queue_duration_seconds", "Time in the queue", seconds, labels);
  // 1 us to 16 s: gathering inputs and writing outputs take microseconds.
  const std::vector<double> phases = metric_buckets(1e-6, 1.2589254, 73);
  const auto phase = [&](const char* name, const char* help) {
    return &registry.histogram(name, help, phases, labels);
  };
  input_s_ = phase("trireme_compute_input_duration_seconds", "Time of gathering a request's inputs");
  infer_s_ = phase("trireme_compute_infer_duration_seconds", "Time of the model run that answered a request");
  output_s_ =
      phase("trireme_compute_output_duration_seconds", "From the model's end to an answer's wire form");
  queue_length_ = &registry.histogram("trireme_queue_length", "Requests waiting when a batch was formed",
                                      metric_buckets(1, 2, 17), labels);
}

void ModelMetrics::register_padding(MetricRegistry& registry, const MetricLabels& labels) {
  const auto count = [&](const char* name, const char* help, std::atomic<uint64_t> Counts::*member) {
    registry.counter_from(name, help, labels, [c = counts_, member] {
      return static_cast<double>(((*c).*member).load(std::memory_order_relaxed));
    });
  };
  count("trireme_padded_rows_total", "Rows that batches were filled up with", &Counts::padded_rows);
  count("trireme_input_elements_total", "Elements of inputs as the model got them", &Counts::elements);
  count("trireme_padded_elements_total", "Of these, what rows and lengths were filled up with",
        &Counts::padded_elements);
}

void ModelMetrics::add_instances(MetricRegistry& registry, const MetricLabels& labels, int count) {
  instances_ = static_cast<size_t>(count);
  size_t none = 0;
  counts_->instances.compare_exchange_strong(none, instances_);
  while (busy_ns_.size() < instances_) busy_ns_.push_back(std::make_shared<std::atomic<uint64_t>>(0));
  for (size_t i = 0; i < busy_ns_.size(); ++i) {
    MetricLabels own = labels;
    own.emplace_back("instance", std::to_string(i));
    registry.counter_from("trireme_instance_busy_seconds_total",
                          "Time that an instance ran batches: its rate is the utilisation", own,
                          [c = counts_, busy = busy_ns_[i], i] {
                            return i < c->instances.load() ? static_cast<double>(busy->load()) * 1e-9 : NAN;
                          });
  }
}

void ModelMetrics::register_durations(MetricRegistry& registry, const MetricLabels& labels) const {
  struct Row {
    const char* name;
    const char* help;
    const MetricHistogram* histogram;
  };
  const Row kRows[] = {
      {"nv_inference_request_duration_us", "Cumulative inference request duration in microseconds",
       latency_s_},
      {"nv_inference_queue_duration_us", "Cumulative time in the queue in microseconds", queue_s_},
      {"nv_inference_compute_input_duration_us", "Cumulative time of gathering inputs in microseconds",
       input_s_},
      {"nv_inference_compute_infer_duration_us", "Cumulative time of model runs in microseconds", infer_s_},
      {"nv_inference_compute_output_duration_us", "Cumulative time of writing outputs in microseconds",
       output_s_},
  };
  for (const Row& row : kRows) {
    registry.counter_from(row.name, row.help, labels,
                          [h = row.histogram] { return static_cast<double>(ns_of(*h) / 1000); });
  }
}

void ModelMetrics::show_summaries(MetricRegistry& registry, const MetricLabels& labels,
                                  const base::Clock& clock) const {
  const auto show = [&](const char* name, const char* help, const MetricHistogram* histogram) {
    registry.summary_of(name, help, labels, {*histogram, 1e6, clock});
  };
  show("nv_inference_request_summary_us", "Summary of inference request duration in microseconds",
       latency_s_);
  show("nv_inference_queue_summary_us", "Summary of time in the queue in microseconds", queue_s_);
  show("nv_inference_compute_input_summary_us", "Summary of gathering inputs in microseconds", input_s_);
  show("nv_inference_compute_infer_summary_us", "Summary of model runs in microseconds", infer_s_);
  show("nv_inference_compute_output_summary_us", "Summary of writing outputs in microseconds", output_s_);
}

void ModelMetrics::show_cost(MetricRegistry& registry, const MetricLabels& labels, double per_busy_second) {
  cost_per_ns_ = per_busy_second * 1e-9;
  registry.counter_from("trireme_cost_total", "Cost of computing, in the currency of the prices", labels,
                        [c = counts_] { return c->cost.load(); });
  registry.gauge_from(
      "trireme_cost_per_million_inferences",
      "Cost of computing over inferences since the start, times a million", labels,
      [c = counts_, h = batch_rows_] { return h->sum() == 0 ? 0 : c->cost.load() / h->sum() * 1e6; });
}

void ModelMetrics::count_batch(const sched::Timing& t) {
  if (cost_per_ns_ > 0)
    counts_->cost.fetch_add(cost_per_ns_ * static_cast<double>(t.finished_ns - t.started_ns));
  batch_rows_->observe(static_cast<double>(t.batch_rows));
  counts_->padded_rows.fetch_add(static_cast<uint64_t>(std::max<int64_t>(0, t.padded_rows - t.batch_rows)),
                                 std::memory_order_relaxed);
  counts_->elements.fetch_add(static_cast<uint64_t>(t.elements), std::memory_order_relaxed);
  counts_->padded_elements.fetch_add(static_cast<uint64_t>(t.padded), std::memory_order_relaxed);
  if (t.instance >= 0) count_busy(static_cast<size_t>(t.instance), t.finished_ns - t.started_ns);
  if (t.queue_length > 0) queue_length_->observe(static_cast<double>(t.queue_length));
  if (sizes_.empty()) return;
  const int64_t last = static_cast<int64_t>(sizes_.size()) - 1;
  BatchSize& size = *sizes_[static_cast<size_t>(std::clamp<int64_t>(t.batch_rows - 1, 0, last))];
  size.input.add(t.computed_ns - t.started_ns);
  size.infer.add(t.finished_ns - t.computed_ns);
}

void ModelMetrics::count_busy(size_t instance, int64_t took_ns) {
  if (instance >= instances_) return;
  busy_ns_[instance]->fetch_add(static_cast<uint64_t>(took_ns), std::memory_order_relaxed);
  // Not when it is loaded: a load that fails leaves the one before, which may have more instances.
  if (counts_->instances.load(std::memory_order_relaxed) != instances_) counts_->instances = instances_;
}

void ModelMetrics::count_success(const sched::Timing& t, int64_t received_ns, int64_t answered_ns,
                                 int64_t wall_ms) {
  latency_s_->observe(seconds_between(received_ns, answered_ns));
  queue_s_->observe(seconds_between(t.enqueued_ns, t.started_ns));
  counts_->last_ms.store(wall_ms, std::memory_order_relaxed);
  if (t.padded_rows == 0) return;  // a cached answer computes nothing; a request without rows does
  input_s_->observe(seconds_between(t.started_ns, t.computed_ns));
  infer_s_->observe(seconds_between(t.computed_ns, t.finished_ns));
  output_s_->observe(seconds_between(t.finished_ns, answered_ns));
}

void ModelMetrics::show_first_responses(MetricRegistry& registry, const MetricLabels& labels) {
  first_response_ms_ = &registry.histogram("nv_inference_first_response_histogram_ms",
                                           "Duration from request to first response in milliseconds",
                                           {100, 500, 2000, 5000}, labels);
}

void ModelMetrics::count_first_response(int64_t took_ns) {
  if (first_response_ms_ != nullptr) first_response_ms_->observe(static_cast<double>(took_ns) * 1e-6);
}

void ModelMetrics::count_lookup(bool is_hit, int64_t took_ns) {
  (is_hit ? counts_->hit : counts_->miss).add(took_ns);
}

void ModelMetrics::count_failure(sched::Ending ending, int64_t received_ns, int64_t answered_ns) {
  counts_->failure.add(answered_ns - received_ns);
  failures_[reason_of(ending)]->add();
}

void ModelMetrics::append_stats(base::Json& stats) const {
  using base::Json;
  const Json none = Json::object({{"count", 0}, {"ns", 0}});
  stats.set("last_inference", counts_->last_ms.load());
  stats.set("inference_count", static_cast<uint64_t>(batch_rows_->sum()));
  stats.set("execution_count", batch_rows_->count());
  stats.set("inference_stats", Json::object({{"success", duration_json(*latency_s_)},
                                             {"fail", duration_json(counts_->failure)},
                                             {"queue", duration_json(*queue_s_)},
                                             {"compute_input", duration_json(*input_s_)},
                                             {"compute_infer", duration_json(*infer_s_)},
                                             {"compute_output", duration_json(*output_s_)},
                                             {"cache_hit", duration_json(counts_->hit)},
                                             {"cache_miss", duration_json(counts_->miss)}}));
  stats.set("response_stats", counts_->responses.json());
  Json sizes = Json::array();
  for (size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i]->infer.count.load() == 0) continue;
    sizes.push_back(Json::object({{"batch_size", static_cast<uint64_t>(i + 1)},
                                  {"compute_input", duration_json(sizes_[i]->input)},
                                  {"compute_infer", duration_json(sizes_[i]->infer)},
                                  {"compute_output", none}}));
  }
  stats.set("batch_stats", std::move(sizes));
}

}  // namespace trireme::serve

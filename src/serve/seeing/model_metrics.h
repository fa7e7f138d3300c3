// Counts of one served model: Triton's metric families, its statistics JSON, and our own histograms.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/text/json.h"
#include "sched/request.h"
#include "serve/seeing/metrics.h"
#include "serve/seeing/response_stats.h"

namespace trireme::serve {

/// A number of events and the time they took together; any thread.
struct DurationSum {
  std::atomic<uint64_t> count{0}, ns{0};
  void add(int64_t by_ns) {
    count.fetch_add(1, std::memory_order_relaxed);
    ns.fetch_add(static_cast<uint64_t>(by_ns > 0 ? by_ns : 0), std::memory_order_relaxed);
  }
};

/// What is counted is counted once: Triton's counters and the statistics are read from the histograms of the
/// phases, so all agree, and a request costs a handful of atomic additions (`bench_metrics`).
class ModelMetrics {
 public:
  /// Registers the series with these labels (model, version and the model's tags); counts go on from those of
  /// `earlier`, if there is one. A load whose tags are others begins anew where tags tell series apart.
  ModelMetrics(MetricRegistry& registry, const MetricLabels& labels, int64_t max_rows,
               const ModelMetrics* earlier);

  /// Counts the time that each of so many instances works, on top of what was there before. Those of an
  /// earlier load that had more are shown until one of these has worked.
  void add_instances(MetricRegistry& registry, const MetricLabels& labels, int count);
  /// A batch ran; on its instance's thread. Its time is the instance's where it names one (not -1).
  void count_batch(const sched::Timing& timing);
  void count_busy(size_t instance, int64_t took_ns);
  /// A client's request was answered. `timing` is that of its (last) batch.
  void count_success(const sched::Timing& timing, int64_t received_ns, int64_t answered_ns, int64_t wall_ms);
  /// A request was looked up among the kept answers.
  void count_lookup(bool is_hit, int64_t took_ns);
  /// Also shows Triton's nv_inference_*_summary_us: quantiles of about the last minute.
  void show_summaries(MetricRegistry& registry, const MetricLabels& labels, const base::Clock& clock) const;
  /// Also shows what batches cost from now on, `per_busy_second` of an instance that computes, and that over
  /// all inferences.
  void show_cost(MetricRegistry& registry, const MetricLabels& labels, double per_busy_second);
  /// Of a decoupled model: shows and counts how long its first answers take.
  void show_first_responses(MetricRegistry& registry, const MetricLabels& labels);
  void count_first_response(int64_t took_ns);
  /// Of a decoupled model: each answer by its place. Shared with later loads.
  ResponseStats& responses() { return counts_->responses; }
  /// A request failed; `ending` gives the reason label.
  void count_failure(sched::Ending ending, int64_t received_ns, int64_t answered_ns);

  /// "inference_count" and so on, without name, version and memory.
  void append_stats(base::Json& stats) const;

 private:
  struct BatchSize {
    DurationSum input, infer;
  };
  /// What scrapes read through the registry, which outlives the model.
  struct Counts {
    DurationSum failure, hit, miss;
    std::atomic<uint64_t> padded_rows{0}, elements{0};
    std::atomic<uint64_t> padded_elements{0};  ///< of elements
    std::atomic<int64_t> last_ms{0};
    std::atomic<double> cost{0};
    std::atomic<size_t> instances{0};  ///< of the load that worked last
    ResponseStats responses;
  };
  void make_histograms(MetricRegistry& registry, const MetricLabels& labels, int64_t max_rows);
  void register_durations(MetricRegistry& registry, const MetricLabels& labels) const;
  void register_padding(MetricRegistry& registry, const MetricLabels& labels);

  double cost_per_ns_ = 0;  ///< of an instance that computes; 0: nobody said
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  std::vector<std::shared_ptr<BatchSize>>
      sizes_;  ///< by rows of a batch, 1 ... max; the last takes all larger ones
  size_t instances_ = 0;
  std::vector<std::shared_ptr<std::atomic<uint64_t>>> busy_ns_;  ///< by instance, those of earlier loads too
  std::array<MetricCounter*, 4> failures_{};                     ///< REJECTED, CANCELED, BACKEND, OTHER
  // The registry's, which outlives the model:
  MetricHistogram* batch_rows_ = nullptr;
  MetricHistogram* latency_s_ = nullptr;
  MetricHistogram* queue_s_ = nullptr;
  MetricHistogram* input_s_ = nullptr;
  MetricHistogram* infer_s_ = nullptr;
  MetricHistogram* output_s_ = nullptr;
  MetricHistogram* queue_length_ = nullptr;
  MetricHistogram* first_response_ms_ = nullptr;  ///< null: not decoupled
};

}  // namespace trireme::serve

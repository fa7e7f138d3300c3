// Counts of one language model: the metric families of vLLM, which gateways and dashboards read, and finer
// times of waiting.
#pragma once

#include <array>
#include <cstdint>

#include "engine/decode/generator.h"
#include "sched/text/text_service.h"
#include "serve/seeing/metrics.h"

namespace trireme::serve {

/// When an answer came to be, on one clock; 0: not yet.
struct TextTimes {
  int64_t received_ns = 0, begun_ns = 0, first_ns = 0, last_ns = 0;
  int64_t pages_asked_ns = 0, pages_ns = 0;  ///< another instance was asked for pages, and they had come
};

/// Any thread. Series of a model that is loaded again go on from where they were.
class TextMetrics {
 public:
  TextMetrics(MetricRegistry& registry, const std::string& model);

  /// Also shows what a million tokens cost, from what a second of steps does.
  void show_cost(double per_busy_second);
  /// After each step of the model's thread, and by that thread. Gives the time in steps since the last call.
  int64_t count_step(const sched::TextStats& now);
  void count_begin(const TextTimes& times) const;
  void count_first_token(const TextTimes& times) const;
  void count_token_after(int64_t gap_ns) const;
  /// An answer is complete.
  void count_end(const TextTimes& times, engine::FinishReason reason, int64_t prompt_tokens,
                 int64_t answer_tokens) const;
  /// It was asked to be at most so long.
  void count_asked(int64_t max_tokens) const;
  /// So many adapters are loaded.
  void show_adapters(size_t count) const { adapters_->set(static_cast<double>(count)); }
  /// There is no answer.
  void count_abort() const { aborted_->add(); }

 private:
  MetricRegistry& registry_;
  const MetricLabels labels_;
  sched::TextStats seen_;  // of the model's thread
  // The registry's, which outlives the model:
  MetricGauge *running_, *waiting_, *page_use_, *adapters_;
  struct {
    MetricCounter *queried, *known, *put_back, *prompt_tokens, *generated_tokens;
    MetricCounter *masks, *mask_us, *busy_us, *told_us;
    MetricCounter *drafts, *draft_tokens, *accepted_tokens;
  } steps_;  // what count_step() counts
  MetricCounter *stopped_, *at_length_, *aborted_;
  MetricHistogram *first_token_s_, *between_tokens_s_, *per_token_s_, *whole_s_, *queue_s_, *inference_s_,
      *prefill_s_, *decode_s_;
  MetricHistogram *prompt_size_, *answer_size_, *asked_size_, *step_size_, *fine_queue_s_;
};

}  // namespace trireme::serve

// Metrics of one language model.
#include "serve/seeing/text_metrics.h"

#include <algorithm>

namespace trireme::serve {
namespace {

using Bounds = std::vector<double>;

// The bounds expected by vLLM's dashboards.
const Bounds kFirstToken{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                         1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Bounds kToken{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const Bounds kRequest{.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                      30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Bounds kStep{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

/// 1, 2, 5, 10, ... up to a million tokens.
Bounds token_counts() {
  Bounds bounds;
  for (double decade = 1; decade <= 1e5; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) bounds.push_back(step * decade);
  }
  bounds.push_back(1e6);
  return bounds;
}

double seconds(int64_t from_ns, int64_t to_ns) {
  return static_cast<double>(std::max<int64_t>(0, to_ns - from_ns)) * 1e-9;
}

}  // namespace

TextMetrics::TextMetrics(MetricRegistry& registry, const std::string& model)
    : registry_(registry), labels_{{"model_name", model}, {"engine", "0"}} {
  const MetricLabels& labels = labels_;
  const auto gauge = [&](const char* name, const char* help) {
    return &registry.gauge(std::string("vllm:") + name, help, labels);
  };
  const auto counter = [&](const char* name, const char* help) {
    return &registry.counter(std::string("vllm:") + name + "_total", help, labels);
  };
  const auto finished = [&](const char* reason) {
    MetricLabels with = labels;
    with.emplace_back("finished_reason", reason);
    return &registry.counter("vllm:request_success_total", "Answers that are complete, by how they ended",
                             with);
  };
  const auto histogram = [&](const char* name, const char* help, const Bounds& bounds) {
    return &registry.histogram(std::string("vllm:") + name, help, bounds, labels);
  };
  running_ = gauge("num_requests_running", "Texts under way");
  waiting_ = gauge("num_requests_waiting", "Requests that wait to begin");
  page_use_ = gauge("kv_cache_usage_perc", "Share of the pages of keys and values that texts hold, 0 to 1");
  steps_.queried = counter("prefix_cache_queries", "Tokens of prompts that were looked up");
  steps_.known = counter("prefix_cache_hits", "Tokens of prompts that were known and did not run");
  steps_.put_back = counter("num_preemptions", "Texts that began again because pages ran out");
  steps_.prompt_tokens = counter("prompt_tokens", "Tokens of prompts");
  steps_.generated_tokens = counter("generation_tokens", "Tokens of answers");
  adapters_ = &registry.gauge("trireme_text_adapters", "Adapters that requests can name", labels);
  steps_.drafts = counter("spec_decode_num_drafts", "How often the next tokens of a text were guessed");
  steps_.draft_tokens = counter("spec_decode_num_draft_tokens", "Guessed tokens that were checked");
  steps_.accepted_tokens = counter("spec_decode_num_accepted_tokens", "Guessed tokens that were right");
  steps_.masks = &registry.counter("trireme_text_masks_total", "Draws of answers that have a form", labels);
  steps_.mask_us =
      &registry.counter("trireme_text_mask_us_total",
                        "Microseconds between steps spent on what such answers may go on with", labels);
  steps_.busy_us = &registry.counter("trireme_text_busy_us_total", "Microseconds in steps", labels);
  steps_.told_us = &registry.counter(
      "trireme_text_told_us_total",
      "Microseconds of processor time between steps spent on giving clients their tokens", labels);
  stopped_ = finished("stop");
  at_length_ = finished("length");
  aborted_ = finished("abort");
  first_token_s_ = histogram("time_to_first_token_seconds", "From arrival to the first token", kFirstToken);
  between_tokens_s_ = histogram("inter_token_latency_seconds", "Between two tokens of an answer", kToken);
  per_token_s_ =
      histogram("request_time_per_output_token_seconds", "Mean time between the tokens of an answer", kToken);
  whole_s_ = histogram("e2e_request_latency_seconds", "From arrival to the last token", kRequest);
  queue_s_ = histogram("request_queue_time_seconds", "From arrival until the prompt is read", kRequest);
  inference_s_ =
      histogram("request_inference_time_seconds", "From the beginning to the last token", kRequest);
  prefill_s_ = histogram("request_prefill_time_seconds", "From the beginning to the first token", kRequest);
  decode_s_ = histogram("request_decode_time_seconds", "From the first token to the last", kRequest);
  const Bounds counts = token_counts();
  prompt_size_ = histogram("request_prompt_tokens", "Tokens of a prompt", counts);
  answer_size_ = histogram("request_generation_tokens", "Tokens of an answer", counts);
  asked_size_ = histogram("request_params_max_tokens", "Tokens that an answer may have", counts);
  step_size_ = histogram("iteration_tokens_total", "Tokens of a step", kStep);
  fine_queue_s_ = &registry.histogram("trireme_text_queue_seconds", "From arrival until the prompt is read",
                                      metric_buckets(1e-5, 2, 24), labels);
}

void TextMetrics::show_cost(double per_busy_second) {
  registry_.gauge_from(
      "trireme_cost_per_million_tokens",
      "Cost of steps over tokens of prompts and answers since the start, times a million", labels_,
      [busy = steps_.busy_us, prompts = steps_.prompt_tokens, answers = steps_.generated_tokens,
       per_busy_second] {
        const auto tokens = static_cast<double>(prompts->value() + answers->value());
        // Microseconds per token equal seconds per million tokens.
        return tokens > 0 ? static_cast<double>(busy->value()) / tokens * per_busy_second : 0;
      });
}

int64_t TextMetrics::count_step(const sched::TextStats& now) {
  running_->set(static_cast<double>(now.running));
  waiting_->set(static_cast<double>(now.waiting));
  page_use_->set(now.page_use);
  const auto add = [](MetricCounter* counter, int64_t before, int64_t after) {
    counter->add(static_cast<uint64_t>(std::max<int64_t>(0, after - before)));
  };
  add(steps_.queried, seen_.prompt_tokens, now.prompt_tokens);
  add(steps_.known, seen_.known_tokens, now.known_tokens);
  add(steps_.put_back, seen_.put_back, now.put_back);
  add(steps_.prompt_tokens, seen_.prompt_tokens, now.prompt_tokens);
  add(steps_.generated_tokens, seen_.generated_tokens, now.generated_tokens);
  add(steps_.drafts, seen_.drafts.drafts, now.drafts.drafts);
  add(steps_.draft_tokens, seen_.drafts.tokens, now.drafts.tokens);
  add(steps_.accepted_tokens, seen_.drafts.accepted, now.drafts.accepted);
  add(steps_.masks, seen_.masks.masks, now.masks.masks);
  add(steps_.mask_us, seen_.masks.ns / base::kNsPerUs, now.masks.ns / base::kNsPerUs);
  add(steps_.busy_us, seen_.busy_ns / base::kNsPerUs, now.busy_ns / base::kNsPerUs);
  add(steps_.told_us, seen_.told_ns / base::kNsPerUs, now.told_ns / base::kNsPerUs);
  if (now.step_tokens > seen_.step_tokens)
    step_size_->observe(static_cast<double>(now.step_tokens - seen_.step_tokens));
  const int64_t busy_ns = now.busy_ns - seen_.busy_ns;
  seen_ = now;
  return busy_ns;
}

void TextMetrics::count_asked(int64_t max_tokens) const {
  asked_size_->observe(static_cast<double>(max_tokens));
}

void TextMetrics::count_begin(const TextTimes& t) const {
  queue_s_->observe(seconds(t.received_ns, t.begun_ns));
  fine_queue_s_->observe(seconds(t.received_ns, t.begun_ns));
}

void TextMetrics::count_first_token(const TextTimes& t) const {
  first_token_s_->observe(seconds(t.received_ns, t.first_ns));
  prefill_s_->observe(seconds(t.begun_ns, t.first_ns));
}

void TextMetrics::count_token_after(int64_t gap_ns) const { between_tokens_s_->observe(seconds(0, gap_ns)); }

void TextMetrics::count_end(const TextTimes& t, engine::FinishReason reason, int64_t prompt_tokens,
                            int64_t answer_tokens) const {
  (reason == engine::FinishReason::length ? at_length_ : stopped_)->add();
  whole_s_->observe(seconds(t.received_ns, t.last_ns));
  inference_s_->observe(seconds(t.begun_ns, t.last_ns));
  decode_s_->observe(seconds(t.first_ns, t.last_ns));
  prompt_size_->observe(static_cast<double>(prompt_tokens));
  answer_size_->observe(static_cast<double>(answer_tokens));
  if (answer_tokens > 1)
    per_token_s_->observe(seconds(t.first_ns, t.last_ns) / static_cast<double>(answer_tokens - 1));
}

}  // namespace trireme::serve

// Metrics of pages that pass from one session to another.
#include "serve/seeing/hand_over_metrics.h"

namespace trireme::serve {
namespace {

constexpr const char* kReasons[kFallbacks] = {"busy",    "unreachable", "refused", "mismatch",
                                              "partial", "failed",      "late"};

}  // namespace

HandOverMetrics::HandOverMetrics(MetricRegistry& registry, const std::string& model) {
  const MetricLabels labels{{"model_name", model}, {"engine", "0"}};
  const auto counter = [&](const char* name, const char* help) {
    return &registry.counter(name, help, labels);
  };
  pages_ = counter("trireme_text_handed_pages_total",
                   "Pages of prompts that another instance or server computed and this one took in");
  bytes_ = counter("trireme_text_handed_bytes_total", "Bytes of such pages");
  given_pages_ = counter("trireme_text_given_pages_total", "Pages of prompts given to other servers");
  given_bytes_ = counter("trireme_text_given_bytes_total", "Bytes of such pages");
  seconds_ = &registry.histogram("trireme_text_hand_over_seconds",
                                 "From asking for a prompt's pages until they are here",
                                 metric_buckets(1e-3, 2, 18), labels);
  for (size_t i = 0; i < kFallbacks; ++i) {
    MetricLabels with = labels;
    with.emplace_back("reason", kReasons[i]);
    fallbacks_[i] = &registry.counter("trireme_text_hand_over_fallbacks_total",
                                      "Prompts, or rests of them, computed by the instance that decodes them "
                                      "though another one was to",
                                      with);
  }
}

void HandOverMetrics::count_pages(int64_t pages, int64_t page_bytes, int64_t ns) const {
  pages_->add(static_cast<uint64_t>(pages));
  bytes_->add(static_cast<uint64_t>(pages * page_bytes));
  seconds_->observe(static_cast<double>(ns) * 1e-9);
}

void HandOverMetrics::count_given(int64_t page_bytes) const {
  given_pages_->add();
  given_bytes_->add(static_cast<uint64_t>(page_bytes));
}

}  // namespace trireme::serve

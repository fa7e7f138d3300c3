// Prompts read by other instances of a model in this process.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sched/text/text_service.h"
#include "serve/config/prefill_options.h"
#include "serve/generative/page_room.h"
#include "serve/seeing/hand_over_metrics.h"

namespace trireme::serve {

/// Any thread. Each prompt goes to the instance that has the fewest, of those whose steps end.
class LocalPages final : public sched::PageSource {
 public:
  using Instances = std::vector<std::shared_ptr<sched::TextService>>;
  /// The instances are of the same model as who asks, and are stopped before this ends; `metrics` outlives
  /// it. An instance hangs whose step takes `step_timeout_ns`; 0: nobody looks.
  LocalPages(Instances instances, const PrefillOptions& options, const HandOverMetrics& metrics,
             int64_t step_timeout_ns);

  bool ask(const std::shared_ptr<sched::PageWish>& wish) override;
  std::chrono::nanoseconds patience() const override { return patience_; }
  void count_late() override { metrics_.count(Fallback::late); }
  /// The instance that has the fewest texts, those included that were given to it a moment ago. Throws
  /// unavailable where all hang.
  sched::TextService& idlest() const;

 private:
  bool hangs(const sched::TextService& instance) const {
    return step_timeout_ns_ != 0 && instance.step_ns() >= step_timeout_ns_;
  }

  const Instances instances_;
  const int64_t least_tokens_;
  const std::chrono::nanoseconds patience_;
  const HandOverMetrics& metrics_;
  const int64_t step_timeout_ns_;
  PageRoom room_;
};

}  // namespace trireme::serve

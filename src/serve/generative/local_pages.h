// Prompts read by other instances of a model in this process.
#pragma once

#include <memory>
#include <vector>

#include "sched/text/text_service.h"
#include "serve/config/prefill_options.h"
#include "serve/generative/page_room.h"
#include "serve/seeing/hand_over_metrics.h"

namespace trireme::serve {

/// Any thread. Each prompt goes to the instance that has the fewest.
class LocalPages final : public sched::PageSource {
 public:
  using Instances = std::vector<std::shared_ptr<sched::TextService>>;
  /// The instances are of the same model as who asks, and are stopped before this ends; `metrics` outlives
  /// it.
  LocalPages(Instances instances, const PrefillOptions& options, const HandOverMetrics& metrics);

  bool ask(const std::shared_ptr<sched::PageWish>& wish) override;
  std::chrono::nanoseconds patience() const override { return patience_; }
  void count_late() override { metrics_.count(Fallback::late); }
  /// The instance that has the fewest texts.
  sched::TextService& idlest() const;

 private:
  const Instances instances_;
  const int64_t least_tokens_;
  const std::chrono::nanoseconds patience_;
  const HandOverMetrics& metrics_;
  PageRoom room_;
};

}  // namespace trireme::serve

// Gives another server the pages of a prompt as they are computed.
#pragma once

#include <memory>
#include <vector>

#include "sched/text/text_service.h"
#include "serve/models/text_model.h"
#include "serve/seeing/hand_over_metrics.h"

namespace trireme::serve {

/// Listener and taker of one request, which draws one token that nobody reads.
class PageSender final : public sched::TextListener, public engine::PageTaker {
 public:
  /// `ids`: what the prompt's pages are called; those before `first` are not sent. `metrics` outlives it.
  PageSender(std::vector<engine::PageId> ids, int64_t first, std::shared_ptr<PageReader> reader,
             const HandOverMetrics& metrics)
      : ids_(std::move(ids)), next_(first), reader_(std::move(reader)), metrics_(metrics) {}

  int64_t next() const override { return next_; }
  bool take(std::shared_ptr<const engine::PageBytes> page) override;

  void on_begin(int64_t /*known_tokens*/) override {}
  bool on_token(const engine::GenerateEvent& /*event*/) override { return true; }
  void on_end(engine::FinishReason reason) override;
  void on_error(const base::Error& error) override { reader_->on_error(error); }
  bool is_gone() const override { return reader_->is_gone(); }

 private:
  const std::vector<engine::PageId> ids_;
  int64_t next_;
  const std::shared_ptr<PageReader> reader_;
  const HandOverMetrics& metrics_;
};

}  // namespace trireme::serve

// One answer of a language model, from the queue to its end: text out of tokens, and what is counted.
#pragma once

#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/memory/memory_budget.h"
#include "data/text/answer_text.h"
#include "sched/text/text_service.h"
#include "serve/models/served_model.h"
#include "serve/models/text_model.h"
#include "serve/seeing/text_metrics.h"

namespace trireme::serve {

class TextCall final : public sched::TextListener {
 public:
  /// What all calls of a model share; it outlives them.
  struct Host {
    const ServedModel& model;
    const data::Tokenizer& tokenizer;
    TextMetrics& metrics;
    base::Clock& clock;
  };
  /// Throws exhausted where the server's memory has no room for the prompt. `counts`: also for the families
  /// that all kinds of models share; else who asks does.
  TextCall(const Host& host, const TextAsk& ask, std::shared_ptr<TextReader> reader, bool counts);

  void set_tenant(const Tenant& tenant) { tenant_ = tenant; }
  const Tenant& tenant() const { return tenant_; }
  /// The request was refused before it was queued; its asker is told by what is thrown.
  void count_refusal() const;
  sched::Timing timing() const;
  const TextTimes& times() const { return times_; }

  void on_pages(int64_t asked_ns, int64_t now_ns) override {
    times_.pages_asked_ns = asked_ns;
    times_.pages_ns = now_ns;
  }
  void on_step(int64_t began_ns) override { times_.begun_ns = began_ns; }
  void on_begin(int64_t known_tokens) override;
  bool on_token(const engine::GenerateEvent& event) override;
  void on_end(engine::FinishReason reason) override;
  void on_error(const base::Error& error) override;
  bool is_gone() const override { return reader_->is_gone(); }

 private:
  void finish(engine::FinishReason reason);
  void fail(const base::Error& error, sched::Ending ending);

  const Host& host_;
  const base::MemoryLease room_;  ///< of the prompt and what ends the answer
  const std::shared_ptr<TextReader> reader_;
  const std::shared_ptr<TokenCharge> charge_;  ///< null: nobody's
  const bool counts_;
  data::AnswerText answer_;
  TextTimes times_;
  TextEnd end_;
  Tenant tenant_;
};

}  // namespace trireme::serve

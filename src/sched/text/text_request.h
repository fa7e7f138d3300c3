// A request for an answer of a language model, and who waits for it.
#pragma once

#include <memory>

#include "base/error.h"
#include "engine/decode/generator.h"
#include "sched/text/token_queue.h"

namespace trireme::sched {

/// Who waits for an answer. Told on the service's thread, or by whoever stops it, one call at a time; what it
/// does is done while no step runs, so it must be quick. The last call is on_end() or on_error(); what the
/// others throw comes as on_error().
class TextListener {
 public:
  virtual ~TextListener() = default;
  /// It was waited for another session to read its prompt, from one moment to the other of the service's
  /// clock.
  virtual void on_pages(int64_t /*asked_ns*/, int64_t /*now_ns*/) {}
  /// Right before on_begin(): when the step began that is the first to read its prompt, by the service's
  /// clock. Everything here is told behind a step.
  virtual void on_step(int64_t /*began_ns*/) {}
  /// Its prompt is being read; so many tokens of it need not run.
  virtual void on_begin(int64_t known_tokens) = 0;
  /// The next token, or a prompt that was scored and whose answer ends at once. False: the answer is over,
  /// and nothing follows this call.
  virtual bool on_token(const engine::GenerateEvent& event) = 0;
  virtual void on_end(engine::FinishReason reason) = 0;
  virtual void on_error(const base::Error& error) = 0;
  /// Nobody waits any more.
  virtual bool is_gone() const = 0;
};

struct TextRequest {
  engine::GenerateRequest generate;
  Standing standing;
  std::shared_ptr<TextListener> listener;
};

}  // namespace trireme::sched

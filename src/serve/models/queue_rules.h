// How a request stands in a model's queue: its priority, and how long it may wait.
#pragma once

#include "sched/request.h"
#include "sched/text/token_queue.h"
#include "serve/config/model_config.h"
#include "serve/config/options.h"
#include "serve/infer/infer_request.h"

namespace trireme::serve {

class QueueRules {
 public:
  /// `config` outlives it.
  QueueRules(const ModelConfig& config, const ServeOptions& options);
  /// Sets priority, deadline and finish of the request's part, which comes now.
  void apply(const InferRequest& request, int64_t now_ns, sched::Request& part) const;
  /// How a text stands that comes now. Nobody knows how long its answer will be, so that a timeout bounds the
  /// wait, also where timeouts are meant to bound answers.
  sched::Standing standing(const InferRequest& request, int64_t now_ns) const;

 private:
  uint32_t priority_of(const InferRequest& request) const;

  const ModelConfig& config_;
  int64_t server_timeout_ns_;  ///< where the configuration names none
  bool is_deadline_aware_;     ///< timeouts bound the answer, not the wait
};

/// Throws unsupported for what queues of texts have not: requests that stay though they are late, and a bound
/// for each priority level.
void check_text_queue(const ModelConfig& config);

}  // namespace trireme::serve

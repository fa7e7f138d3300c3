// How a request stands in a model's queue: its priority, and how long it may wait.
#pragma once

#include "sched/request.h"
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

 private:
  uint32_t priority_of(const InferRequest& request) const;

  const ModelConfig& config_;
  int64_t server_timeout_ns_;  ///< where the configuration names none
  bool is_deadline_aware_;     ///< timeouts bound the answer, not the wait
};

}  // namespace trireme::serve

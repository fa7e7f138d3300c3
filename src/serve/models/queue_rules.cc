// Determines how a request waits in a model's queue.
#include "serve/models/queue_rules.h"

#include <algorithm>

#include "sched/policy/background_share.h"
#include "serve/config/run_config.h"

namespace trireme::serve {
namespace {

constexpr uint32_t kDefaultPriority = 1u << 31;

}  // namespace

QueueRules::QueueRules(const ModelConfig& config, const ServeOptions& options)
    : config_(config),
      server_timeout_ns_(options.request_timeout.ns),
      is_deadline_aware_(
          RunConfig::of(config.parameters).is_deadline_aware.value_or(options.deadline_aware)) {}

uint32_t QueueRules::priority_of(const InferRequest& request) const {
  const uint64_t levels = config_.priority_levels;
  if (levels > 0) {
    const bool is_level = request.priority >= 1 && request.priority <= levels;
    return static_cast<uint32_t>(is_level ? request.priority : config_.default_priority_level);
  }
  if (request.priority == 0) return kDefaultPriority;
  return static_cast<uint32_t>(std::min<uint64_t>(request.priority, kDefaultPriority));
}

void QueueRules::apply(const InferRequest& request, int64_t now_ns, sched::Request& part) const {
  if (request.is_background) {
    part.priority = sched::kBackgroundPriority;
    return;
  }
  part.priority = priority_of(request);
  const QueuePolicy& queue = config_.queue_of(config_.priority_levels > 0 ? part.priority : 0);
  int64_t timeout_ns =
      queue.default_timeout_us > 0 ? queue.default_timeout_us * base::kNsPerUs : server_timeout_ns_;
  const bool may_override = queue.allow_timeout_override.value_or(true);
  if (may_override && request.timeout_us > 0 && request.timeout_us < INT64_MAX / 2 / base::kNsPerUs) {
    const int64_t asked_ns = static_cast<int64_t>(request.timeout_us) * base::kNsPerUs;
    timeout_ns = timeout_ns == 0 ? asked_ns : std::min(timeout_ns, asked_ns);
  }
  const int64_t until_ns = timeout_ns == 0 ? 0 : now_ns + timeout_ns;
  part.finish_ns = request.deadline_ns;  // the caller's own: nobody waits for the answer after it
  part.runs_late = queue.runs_late;
  if (!is_deadline_aware_) {
    part.deadline_ns = until_ns;
  } else if (until_ns != 0) {
    part.finish_ns = part.finish_ns == 0 ? until_ns : std::min(part.finish_ns, until_ns);
  }
}

sched::Standing QueueRules::standing(const InferRequest& request, int64_t now_ns) const {
  static_assert(sched::kBackgroundPriority == sched::kBackground);
  sched::Request place;
  apply(request, now_ns, place);
  int64_t begin_ns = place.deadline_ns;
  if (place.finish_ns != 0) begin_ns = begin_ns == 0 ? place.finish_ns : std::min(begin_ns, place.finish_ns);
  return {.priority = place.priority, .deadline_ns = begin_ns};
}

void check_text_queue(const ModelConfig& config) {
  const auto check = [&](const QueuePolicy& queue) {
    if (queue.runs_late)
      base::fail_unsupported("timeout_action DELAY of a language model: texts that are late leave its queue");
    if (queue.max_queue_size > 0 && config.priority_levels > 0)
      base::fail_unsupported("max_queue_size beside priority_levels of a language model, whose levels share ",
                             "a queue");
  };
  check(config.queue);
  for (const auto& [level, queue] : config.level_queues) check(queue);
}

}  // namespace trireme::serve

// Counting of requests by the time at which they were due, and of answers by the time at which they came.
#include "load/run/tally.h"

#include <algorithm>

namespace trireme::load {

Tally::Tally(const LoadPlan& plan, const Window& window) : plan_(plan), window_(window) {
  result.interval_ns = window_.interval_ns;
  if (plan.mix == nullptr) return;
  for (const std::string& name : plan.mix->classes) result.classes.push_back({name, {}, 0});
}

size_t Tally::class_of(size_t request) const {
  return plan_.mix != nullptr && !plan_.mix->class_of.empty() ? plan_.mix->class_of[request] : 0;
}

Interval& Tally::interval_at(int64_t ns) {
  const int64_t since_ns = std::max<int64_t>(0, ns - window_.counted_from_ns);
  result.widen_intervals(since_ns);
  const auto at = static_cast<size_t>(since_ns / result.interval_ns);
  if (result.intervals.size() <= at) result.intervals.resize(at + 1);
  return result.intervals[at];
}

void Tally::succeed(const Sent& sent, const Answer& answer, int64_t now_ns) {
  const int64_t scheduled_ns = sent.what.scheduled_ns;
  if (counts(scheduled_ns)) {
    const int64_t latency_ns = now_ns - scheduled_ns;
    ++result.succeeded;
    if (!result.classes.empty()) result.classes[sent.of_class].latency.record(latency_ns);
    result.latency.record(latency_ns);
    result.service.record(now_ns - sent.started_ns);
    result.received_bytes += answer.body_bytes;
    result.send_ns += static_cast<double>(std::max<int64_t>(0, sent.sent_ns - sent.started_ns));
    result.receive_ns += static_cast<double>(sent.first_ns > 0 ? now_ns - sent.first_ns : 0);
    interval_at(scheduled_ns).latency.record(latency_ns);
    if (sent.parts > 0) {
      result.parts += sent.parts;
      result.first_part.record(sent.first_part_ns - scheduled_ns);
      if (sent.parts > 1)
        result.between_parts.record((sent.last_part_ns - sent.first_part_ns) / (sent.parts - 1));
    }
    record(sent, "", now_ns);
  }
  if (counts(now_ns)) {
    ++result.completed_in_window;
    ++interval_at(now_ns).completed;
  }
}

void Tally::fail(const Sent& sent, const std::string& error, int64_t now_ns) {
  if (!counts(sent.what.scheduled_ns)) return;
  ++result.errors[error];
  ++interval_at(sent.what.scheduled_ns).errors;
  if (!result.classes.empty()) ++result.classes[class_of(sent.what.request)].failed;
  record(sent, error, now_ns);
}

void Tally::record(const Sent& sent, const std::string& error, int64_t now_ns) {
  if (!plan_.records) return;
  const auto since = [this](int64_t ns) { return ns == 0 ? 0 : ns - window_.counted_from_ns; };
  result.records.push_back({.scheduled_ns = since(sent.what.scheduled_ns),
                            .sent_ns = since(sent.started_ns),
                            .first_ns = since(sent.first_ns),
                            .ended_ns = since(now_ns),
                            .request = static_cast<uint32_t>(sent.what.request),
                            .parts = static_cast<uint32_t>(sent.parts),
                            .error = error});
}

}  // namespace trireme::load

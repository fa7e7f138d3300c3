// Arrivals: fixed ticks or a Poisson process, and what a pacer says.
#include "load/run/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"

namespace trireme::load {
namespace {

/// Of requests that are due and wait for a connection, 24 bytes each. More arrive when some have gone, and
/// keep the times at which they were due.
constexpr size_t kMostWaiting = size_t{1} << 22;
constexpr double kLatestNs = 4e18;  // 127 years, to which a start can be added

}  // namespace

ArrivalTimes::ArrivalTimes(const LoadPlan& plan, int thread)
    : arrivals_(plan.arrivals),
      gap_ns_(std::min(1e9 * plan.threads / plan.rate, kLatestNs)),
      at_ns_(arrivals_ == Arrivals::fixed ? gap_ns_ * thread / plan.threads - gap_ns_ : 0),
      seed_(plan.seed),
      stream_(static_cast<uint64_t>(thread)) {}

int64_t ArrivalTimes::next_ns() {
  if (arrivals_ == Arrivals::fixed) {
    at_ns_ += gap_ns_;
  } else {
    const base::PhiloxBlock words = base::philox_block(seed_, stream_, index_++);
    at_ns_ += -gap_ns_ * std::log(1 - base::uniform_f64(words[0], words[1]));
  }
  return static_cast<int64_t>(std::min(at_ns_, kLatestNs));
}

Schedule::Schedule(const LoadPlan& plan, const Window& window, int thread)
    : plan_(plan),
      start_ns_(window.start_ns),
      quota_(plan.max_requests > 0 ? share_of(plan.max_requests, plan.threads, thread) : -1),
      arrivals_(plan, thread),
      next_request_(plan.first_request + static_cast<size_t>(thread)) {
  if (plan.rate > 0) next_arrival_ns_ = start_ns_ + arrivals_.next_ns();
}

void Schedule::queue_due(int64_t now_ns, Tally& tally) {
  if (is_stopped_) return;
  if (plan_.pacer != nullptr) {
    queue_paced(now_ns, tally);
  } else {
    queue_arrivals(now_ns, tally);
  }
}

void Schedule::queue_arrivals(int64_t now_ns, Tally& tally) {
  for (; next_arrival_ns_ <= now_ns && next_arrival_ns_ < tally.end_ns() && backlog.size() < kMostWaiting;
       next_arrival_ns_ = start_ns_ + arrivals_.next_ns()) {
    if (quota_ == 0) tally.end_at(next_arrival_ns_);
    if (next_arrival_ns_ >= tally.end_ns()) break;
    if (tally.counts(next_arrival_ns_)) {
      start_counted();
      ++tally.result.scheduled;
    }
    backlog.push_back({next_arrival_ns_, next_request(tally), 0});
  }
}

void Schedule::queue_paced(int64_t now_ns, Tally& tally) {
  const int64_t since_start = now_ns - start_ns_;
  while (now_ns < tally.end_ns() && plan_.pacer->next_ns() <= since_start && backlog.size() < kMostWaiting) {
    Send what = plan_.pacer->take(since_start);
    what.scheduled_ns += start_ns_;
    ++tally.result.scheduled;
    backlog.push_back(what);
  }
}

size_t Schedule::next_request(Tally& tally) {
  const bool ordered = plan_.mix != nullptr && !plan_.mix->order.empty();
  const size_t at = next_request_ % (ordered ? plan_.mix->order.size() : plan_.requests->size());
  tally.result.taken = next_request_ + 1 - plan_.first_request;
  next_request_ += static_cast<size_t>(plan_.threads);
  return ordered ? plan_.mix->order[at] : at;
}

int64_t Schedule::next_ns() const {
  if (plan_.rate > 0) return next_arrival_ns_;
  const bool is_known = plan_.pacer != nullptr && plan_.pacer->next_ns() != Pacer::kNever;
  return is_known ? start_ns_ + plan_.pacer->next_ns() : std::numeric_limits<int64_t>::max();
}

}  // namespace trireme::load

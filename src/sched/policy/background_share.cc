// Averages of arrivals and answers, and when background work may run according to them.
#include "sched/policy/background_share.h"

#include <algorithm>

namespace trireme::sched {
namespace {

constexpr double kNewShare = 1.0 / 16;      // weight of a new value in a mean: a few dozen values decide
constexpr double kLatencyShare = 1.0 / 16;  // share of an answer's time that one batch may take
constexpr int64_t kRest = 64;               // rest after a batch, in multiples of its duration
constexpr double kSilence = 5;              // silence before full use, in mean gaps between requests
constexpr double kMostGrowth = 4;           // limits a gap: one pause does not make a client a rare one
constexpr double kFirstGapNs = 20e6;        // assumed gap after the very first request

}  // namespace

void BackgroundShare::arrived(int64_t now_ns) {
  if (last_ns_ != 0) {
    const auto gap = static_cast<double>(std::max<int64_t>(0, now_ns - last_ns_));
    if (gap_ns_ == 0) gap_ns_ = kFirstGapNs;
    gap_ns_ += (std::min(gap, kMostGrowth * std::max(gap_ns_, 1.0)) - gap_ns_) * kNewShare;
  }
  last_ns_ = now_ns;
}

void BackgroundShare::answered(int64_t latency_ns) {
  const auto latency = static_cast<double>(latency_ns);
  latency_ns_ = latency_ns_ == 0 ? latency : latency_ns_ + (latency - latency_ns_) * kNewShare;
}

void BackgroundShare::ran(int64_t now_ns, int64_t took_ns) { rests_until_ns_ = now_ns + kRest * took_ns; }

BackgroundShare::Leave BackgroundShare::at(int64_t now_ns) const {
  if (last_ns_ == 0) return {.most_ns = INT64_MAX, .may_be_one = true, .next_ns = now_ns};
  const double gap = gap_ns_ == 0 ? kFirstGapNs : gap_ns_;
  const int64_t full_at_ns = last_ns_ + static_cast<int64_t>(kSilence * gap);
  if (now_ns >= full_at_ns) return {.most_ns = INT64_MAX, .may_be_one = true, .next_ns = full_at_ns};
  return {.most_ns = static_cast<int64_t>(latency_ns_ * kLatencyShare),
          .may_be_one = now_ns >= rests_until_ns_,
          .next_ns = std::min(full_at_ns, std::max(now_ns + 1, rests_until_ns_))};
}

}  // namespace trireme::sched

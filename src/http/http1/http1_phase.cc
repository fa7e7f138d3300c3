// Deadlines of HTTP/1.1 connections by phase.
#include "http/http1/http1_phase.h"

#include <algorithm>
#include <utility>

#include "http/pace.h"

namespace trireme::http {
namespace {

constexpr int64_t kLingerNs = 2'000'000'000;

}  // namespace

void Http1PhaseClock::enter(Http1Phase phase, int64_t now_ns) {
  if (std::exchange(is_renewed_, false) || phase != phase_) began_ns_ = now_ns;
  phase_ = phase;
}

int64_t Http1PhaseClock::due_ns(const ServerOptions& options, size_t body_bytes, bool draining,
                                int64_t drain_began_ns) const {
  switch (phase_) {
    case Http1Phase::linger: return began_ns_ + kLingerNs;
    case Http1Phase::head: return began_ns_ + to_ns(options.header_timeout);
    case Http1Phase::body: {
      const double earned_s = static_cast<double>(body_bytes) / static_cast<double>(options.min_body_rate);
      return began_ns_ + to_ns(options.body_timeout) + static_cast<int64_t>(earned_s * 1e9);
    }
    case Http1Phase::idle: break;
  }
  const int64_t idle_ns = began_ns_ + to_ns(options.idle_timeout);
  if (!draining) return idle_ns;
  return std::min(idle_ns, std::max(drain_began_ns, began_ns_) + to_ns(options.drain_grace));
}

}  // namespace trireme::http

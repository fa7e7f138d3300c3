// One instance's standing with the rate limiter that all models share.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "sched/rate_limiter.h"

namespace trireme::sched {

/// Leave to run: asked for where a batch is ripe, given back after it. Without a limiter there always is
/// leave. The mutex of its owner guards the state. Order of locks: the limiter's, then the owner's, since a
/// grant comes with the limiter's lock held; so the limiter is never called with the owner's lock held.
class RateLease {
 public:
  /// Joins the limiter, which calls `on_grant`; that calls granted() with the owner's lock held. Throws
  /// invalid_argument for needs that can never be met.
  void open(RateLimiter& limiter, RateClaim claim, std::function<void()> on_grant);
  /// Leaves the limiter, with what it holds. The owner's lock is not held.
  void close();

  bool may_run() const { return limiter_ == nullptr || leave_ == Leave::granted; }
  void granted() { leave_ = Leave::granted; }
  /// Asks for leave where a batch is ripe, gives it back where none is; releases `lock` meanwhile. True if
  /// that may have changed what can be taken.
  bool settle(bool is_ripe, bool is_closing, std::unique_lock<std::mutex>& lock);
  /// A run ends; `asks_again`: there is more to do. Then, without the owner's lock, give_back(): true if
  /// leave for the next was granted at once.
  void run_ends(bool asks_again) { leave_ = asks_again && limiter_ != nullptr ? Leave::asked : Leave::none; }
  bool give_back(bool asks_again) {
    return limiter_ != nullptr && limiter_->give_back(claim_, true, asks_again);
  }

 private:
  enum class Leave : uint8_t { none, asked, granted };
  RateLimiter* limiter_ = nullptr;
  uint64_t claim_ = 0;  ///< its number at the limiter
  Leave leave_ = Leave::none;
};

}  // namespace trireme::sched

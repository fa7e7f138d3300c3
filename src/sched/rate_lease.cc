// The lease of one instance from the rate limiter.
#include "sched/rate_lease.h"

#include <utility>

namespace trireme::sched {

void RateLease::open(RateLimiter& limiter, RateClaim claim, std::function<void()> on_grant) {
  claim_ = limiter.add(std::move(claim), std::move(on_grant));
  limiter_ = &limiter;
}

void RateLease::close() {
  if (limiter_ != nullptr) limiter_->remove(claim_);
  limiter_ = nullptr;
}

bool RateLease::settle(bool is_ripe, bool is_closing, std::unique_lock<std::mutex>& lock) {
  if (limiter_ == nullptr) return false;
  if (is_ripe && leave_ == Leave::none) {
    leave_ = Leave::asked;
    lock.unlock();
    const bool is_granted = limiter_->ask(claim_);
    lock.lock();
    if (is_granted) leave_ = Leave::granted;
    return true;
  }
  const bool is_useless = leave_ == Leave::granted || (is_closing && leave_ == Leave::asked);
  if (is_ripe || !is_useless) return false;
  leave_ = Leave::none;
  lock.unlock();
  limiter_->give_back(claim_, false);
  lock.lock();
  leave_ = Leave::none;  // a grant may have arrived just before
  return true;
}

}  // namespace trireme::sched

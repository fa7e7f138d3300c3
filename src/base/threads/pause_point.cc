// Lets low-priority work pause while other work runs.
#include "base/threads/pause_point.h"

#include <utility>

#include "base/machine/busy_cpus.h"

namespace trireme::base {
namespace {

thread_local PausePoint* own_point = nullptr;

}  // namespace

PausePoint* PausePoint::of_this_thread() { return own_point; }

PausePoint::Scope::Scope(PausePoint* point) : before_(std::exchange(own_point, point)) {}

PausePoint::Scope::~Scope() { own_point = before_; }

void PausePoint::wait() {
  const AwayFromCpu away;
  waiting_.fetch_add(1);
  while (held_.load(std::memory_order_acquire) != 0) held_.wait(1);
  waiting_.fetch_sub(1);
}

}  // namespace trireme::base

// The machine's clocks.
#include "base/clock.h"

#include <chrono>
#include <thread>

namespace trireme::base {

int64_t SystemClock::now_ns() const {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t SystemClock::wall_ns() const {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

void SystemClock::sleep_until(int64_t deadline_ns) {
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline_ns)));
}

}  // namespace trireme::base

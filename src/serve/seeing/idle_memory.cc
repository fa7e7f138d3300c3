// Returns unused memory to the system, according to the allocator's statistics.
#include "serve/seeing/idle_memory.h"

#include <malloc.h>

#include <algorithm>

namespace trireme::serve {
namespace {

constexpr int64_t kLookNs = 1'000'000'000, kIdleWindowNs = 10'000'000'000;
constexpr size_t kKeptBytes = size_t{32} << 20;  // less is not worth the page faults

}  // namespace

bool IdleMemory::look(int64_t now_ns) {
  if (now_ns < next_look_ns_) return false;
  next_look_ns_ = now_ns + kLookNs;
  const size_t free_bytes = mallinfo2().fordblks;
  returned_ = std::min(returned_, free_bytes);
  least_free_ = std::min(least_free_, free_bytes);
  if (window_ends_ns_ == 0) window_ends_ns_ = now_ns + kIdleWindowNs;
  if (now_ns < window_ends_ns_) return false;
  window_ends_ns_ = now_ns + kIdleWindowNs;
  const bool is_idle = least_free_ > returned_ + kKeptBytes;
  least_free_ = free_bytes;
  if (!is_idle) return false;
  malloc_trim(0);
  returned_ = mallinfo2().fordblks;
  return true;
}

}  // namespace trireme::serve

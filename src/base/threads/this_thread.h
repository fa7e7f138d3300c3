// The calling thread: its name, as `top -H`, `perf` and /proc/PID/task/TID/comm show it, and its time.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <ctime>

namespace trireme::base {

/// Names the calling thread; threads that it starts later have the name too. At most 15 characters: what is
/// longer is refused by the system and changes nothing.
inline void name_this_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

/// Processor time of the calling thread so far; some tenths of a microsecond a call.
inline int64_t this_thread_cpu_ns() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return int64_t{spent.tv_sec} * 1'000'000'000 + spent.tv_nsec;
}

}  // namespace trireme::base

// Tests that halt-polling threads poll after work, sleep without it, and end when told to.
#include "base/machine/halt_polling.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <chrono>
#include <functional>

#include "base/clock.h"
#include "base/machine/cpu_info.h"
#include "base/error.h"

namespace trireme::base {
namespace {

using namespace std::chrono_literals;

bool comes_true(const std::function<bool()>& what) {
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (!what()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

int64_t cpu_ns() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * kNsPerSecond +
         (use.ru_utime.tv_usec + use.ru_stime.tv_usec) * kNsPerUs;
}

TEST(HaltPolling, PollsAfterWorkAndThenSleeps) {
  const int cpu = read_cpu_info().allowed.front();
  HaltPolling polling(100 * kNsPerMs, {cpu});
  ASSERT_TRUE(comes_true([&] { return polling.polling() == 0; }));
  for (int round = 0; round < 3; ++round) {
    auto last = std::chrono::steady_clock::now();
    // At idle priority, a poller on a busy processor may start only after a single report of work has
    // expired.
    ASSERT_TRUE(comes_true([&] {
      last = std::chrono::steady_clock::now();
      polling.worked();
      return polling.polling() == 1;
    }));
    ASSERT_TRUE(comes_true([&] { return polling.polling() == 0; }));
    EXPECT_GE(std::chrono::steady_clock::now() - last, 100ms);
  }
}

TEST(HaltPolling, CostsNothingWithoutWork) {
  HaltPolling polling(20 * kNsPerMs, read_cpu_info().allowed);
  polling.worked();
  std::this_thread::sleep_for(20ms);
  ASSERT_TRUE(comes_true([&] { return polling.polling() == 0; }));
  const int64_t before = cpu_ns();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(cpu_ns() - before, 30 * kNsPerMs);
}

// While a poller runs, a thread with work still gets nearly all the processor time this process receives.
TEST(HaltPolling, GivesWay) {
  const int cpu = read_cpu_info().allowed.front();
  HaltPolling polling(60 * kNsPerSecond, {cpu});
  polling.worked();
  ASSERT_TRUE(comes_true([&] { return polling.polling() == 1; }));
  double share = 0;
  std::thread worker([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const auto own_ns = [] {
      timespec t{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
      return t.tv_sec * kNsPerSecond + t.tv_nsec;
    };
    const int64_t own = own_ns(), all = cpu_ns();
    while (own_ns() - own < 300 * kNsPerMs) {
    }
    share = static_cast<double>(own_ns() - own) / static_cast<double>(cpu_ns() - all);
  });
  worker.join();
  EXPECT_GT(share, 0.9);
}

TEST(HaltPolling, EndsWhilePolling) {
  const auto begin = std::chrono::steady_clock::now();
  {
    HaltPolling polling(60 * kNsPerSecond, read_cpu_info().allowed);
    polling.worked();
    EXPECT_TRUE(comes_true([&] { return polling.polling() > 0; }));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

}  // namespace
}  // namespace trireme::base

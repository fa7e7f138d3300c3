// Tests the thread pool: every task runs exactly once, over many calls and after sleeping.
#include "base/threads/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <latch>

#include "base/threads/float_controls.h"
#include "base/threads/team_meetings.h"
#include "base/machine/busy_cpus.h"
#include "base/machine/cpu_info.h"

namespace trireme::base {
namespace {

TEST(ThreadPool, EveryTaskRunsExactlyOnce) {
  for (int threads : {1, 2, 4, 7}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 2000; ++round) {
      const int64_t tasks = 1 + round % 37;
      std::vector<std::atomic<int>> hits(static_cast<size_t>(tasks));
      pool.run(tasks, [&](int64_t i) { hits[static_cast<size_t>(i)].fetch_add(1); });
      for (const auto& h : hits) ASSERT_EQ(h.load(), 1);
      if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

TEST(ThreadPool, MembersHelpOneThatIsLate) {
  ThreadPool pool(2);
  // The first task waits for all others, half of which belong to the same member, so the other must take
  // them.
  std::atomic<int> others{0};
  pool.run(16, [&](int64_t i) {
    if (i > 0) {
      others.fetch_add(1);
      return;
    }
    while (others.load() < 15) std::this_thread::yield();
  });
  EXPECT_EQ(others.load(), 15);
}

// A sleeper wakes on few processors; once it runs, it may use all processors of the team.
TEST(ThreadPool, MembersThatSleptMayUseAllProcessors) {
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> arrived{0}, equal{0};
    pool.run(3, [&](int64_t) {
      cpu_set_t own;
      CPU_ZERO(&own);
      arrived.fetch_add(1);
      // Each member takes one task: none finishes before all have arrived.
      while (arrived.load() < 3) std::this_thread::yield();
      if (sched_getaffinity(0, sizeof own, &own) == 0 && CPU_EQUAL(&own, &all)) equal.fetch_add(1);
    });
    EXPECT_EQ(equal.load(), 3);
  }
}

// If threads count as computing on all processors but two, a team of two wakes on those two.
TEST(ThreadPool, MembersWakeWhereNoOtherTeamComputes) {
  const std::vector<int> cpus = read_cpu_info().allowed;
  if (cpus.size() < 3) GTEST_SKIP() << "needs three processors";
  std::latch seated(static_cast<ptrdiff_t>(cpus.size() - 2)), over(1);
  std::vector<std::thread> others;
  for (size_t i = 0; i + 2 < cpus.size(); ++i) {
    others.emplace_back([&, cpu = cpus[i]] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
      const BusyCpu busy = BusyCpu::here();
      seated.count_down();
      over.wait();
    });
  }
  seated.wait();
  ThreadPool pool(2);
  int there = 0;
  constexpr int kRounds = 40;
  for (int round = 0; round < kRounds; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const BusyCpu caller = BusyCpu::alone();
    std::atomic<int> arrived{0}, outside{0};
    pool.run(2, [&](int64_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
      const int cpu = sched_getcpu();
      outside.fetch_add(cpu != cpus[cpus.size() - 1] && cpu != cpus[cpus.size() - 2]);
    });
    there += outside.load() == 0;
  }
  over.count_down();
  for (std::thread& t : others) t.join();
  EXPECT_GE(there, kRounds * 7 / 10);  // the system may move a thread meanwhile
}

TEST(ThreadPool, CountsTheLoopsThatTheTeamShares) {
  ThreadPool alone(1), pool(3);
  const auto nothing = [](int64_t) {};
  const int64_t before = team_meetings();
  alone.run(5, nothing);
  pool.run(0, nothing);
  pool.run(1, nothing);
  pool.for_range(10, 16, [](int64_t, int64_t) {});
  EXPECT_EQ(team_meetings(), before);
  pool.run(5, nothing);
  pool.for_range(100, 16, [](int64_t, int64_t) {});
  EXPECT_EQ(team_meetings(), before + 2);
}

TEST(ThreadPool, MembersComputeWithTheCallersFloatControls) {
  ThreadPool pool(3);
  const auto all_have = [&](uint32_t controls) {
    std::atomic<int> same{0};
    pool.run(60, [&](int64_t) {
      same += float_controls() == controls ? 1 : 0;
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // so that every member takes some
    });
    return same == 60;
  };
  const uint32_t before = float_controls();
  EXPECT_TRUE(all_have(before));
  volatile float tiny = 1e-20f;
  {
    const SubnormalsAreZero controls;
    EXPECT_NE(float_controls(), before);
    EXPECT_TRUE(all_have(float_controls()));
    EXPECT_EQ(tiny * tiny, 0.0f);
  }
  EXPECT_EQ(float_controls(), before);
  EXPECT_TRUE(all_have(before));
  EXPECT_GT(tiny * tiny, 0.0f);
}

TEST(ThreadPool, RangePiecesDoNotDependOnThreads) {
  for (int64_t count : {1, 7, 1000, 100000}) {
    std::vector<int> covered(static_cast<size_t>(count));
    ThreadPool pool(3);
    pool.for_range(count, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++covered[static_cast<size_t>(i)];
    });
    for (int c : covered) ASSERT_EQ(c, 1);
  }
}

}  // namespace
}  // namespace trireme::base

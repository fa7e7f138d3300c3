// Loops of several stages: each task runs once and after those it depends on, for any team size.
#include "backend/cpu/device/stage_loop.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/threads/team_meetings.h"

namespace trireme::cpu {
namespace {

TEST(StageLoop, TasksRunOnceAndFindWhatTheyWaitedFor) {
  constexpr int64_t kParts = 5, kEach = 7;
  for (const int threads : {1, 2, 3, 8}) {
    base::ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      std::array<Pending, kParts> pending;
      for (Pending& p : pending) p.start(kEach);
      std::vector<std::atomic<int>> runs(kParts * kEach + kParts + 1);
      std::atomic<int64_t> early{0}, last{0};
      const int64_t before = base::team_meetings();
      run_stages<3>(pool, {kParts * kEach, kParts, 1}, [&](size_t stage, int64_t task) {
        if (stage == 0) {
          runs[static_cast<size_t>(task)].fetch_add(1, std::memory_order_relaxed);
          last += pending[static_cast<size_t>(task / kEach)].finish();
        } else if (stage == 1) {
          pending[static_cast<size_t>(task)].wait();
          for (int64_t i = 0; i < kEach; ++i)
            early += runs[static_cast<size_t>(task * kEach + i)].load(std::memory_order_relaxed) != 1;
          runs[static_cast<size_t>(kParts * kEach + task)].fetch_add(1);
        } else {
          runs[kParts * kEach + kParts].fetch_add(1);
        }
      });
      EXPECT_EQ(base::team_meetings() - before, threads == 1 ? 0 : 1);
      ASSERT_EQ(early.load(), 0) << threads << " threads";
      ASSERT_EQ(last.load(), kParts);
      for (const auto& n : runs) ASSERT_EQ(n.load(), 1) << threads << " threads";
    }
  }
}

TEST(StageLoop, StagesWithoutTasksAreLeftOut) {
  base::ThreadPool pool(3);
  std::atomic<int> runs{0};
  run_stages<2>(pool, {0, 4}, [&](size_t stage, int64_t) { runs += stage == 1; });
  run_stages<2>(pool, {0, 0}, [&](size_t, int64_t) { runs += 100; });
  EXPECT_EQ(runs.load(), 4);
}

}  // namespace
}  // namespace trireme::cpu

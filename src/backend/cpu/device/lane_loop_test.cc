// Loops over lanes: each task runs once, a lane runs one task at a time, other threads help late lanes.
#include "backend/cpu/device/lane_loop.h"

#include <gtest/gtest.h>

#include <vector>

namespace trireme::cpu {
namespace {

TEST(LaneLoop, LanesAreApartAndEveryTaskRunsOnce) {
  for (int threads : {1, 2, 4, 7}) {
    base::ThreadPool pool(threads);
    for (int round = 0; round < 2000; ++round) {
      const int64_t tasks = round % 23;
      std::vector<std::atomic<int>> inside(static_cast<size_t>(threads)), hits(static_cast<size_t>(tasks));
      std::atomic<int> bad{0};
      run_lanes(pool, tasks, [&](int64_t task, int lane) {
        if (lane < 0 || lane >= threads || lane >= tasks) {
          bad.fetch_add(1);
          return;
        }
        std::atomic<int>& mine = inside[static_cast<size_t>(lane)];
        if (mine.fetch_add(1) != 0) bad.fetch_add(1);
        hits[static_cast<size_t>(task)].fetch_add(1);
        mine.fetch_sub(1);
      });
      ASSERT_EQ(bad.load(), 0);
      for (const auto& h : hits) ASSERT_EQ(h.load(), 1);
    }
  }
}

}  // namespace
}  // namespace trireme::cpu

// The side lane: order of jobs, memory visible on both sides, failures that are reported once, and more jobs
// than its ring holds.
#include "runtime/side_lane.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <vector>

namespace trireme::runtime {
namespace {

TEST(SideLane, JobsRunInOrderAndSeeWhatWasWrittenBefore) {
  std::vector<uint32_t> written(2000), seen(2000);  // plain memory, ordered by the tickets only
  SideLane lane([&](uint32_t job) { seen[job] = written[job] + (job > 0 ? seen[job - 1] : 0); });
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 2000; ++i) {
    written[i] = i;
    const uint32_t ticket = lane.post(i);
    sum += i;
    if (i % 7 != 0) continue;
    lane.wait(ticket);
    EXPECT_EQ(seen[i], sum);
  }
  lane.finish();
  EXPECT_EQ(seen.back(), sum);
  EXPECT_TRUE(lane.is_idle());
}

TEST(SideLane, SleepsAndWakes) {
  int done = 0;
  SideLane lane([&](uint32_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    ++done;
  });
  for (int i = 1; i <= 5; ++i) {
    lane.wait(lane.post(0));
    EXPECT_EQ(done, i);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

TEST(SideLane, AFailureStopsTheJobsBehindItAndIsTakenOnce) {
  int ran = 0;
  SideLane lane([&](uint32_t job) {
    ++ran;
    if (job == 1) throw std::runtime_error("job 1");
  });
  for (uint32_t i = 0; i < 4; ++i) lane.post(i);
  EXPECT_THROW(lane.finish(), std::runtime_error);
  EXPECT_EQ(ran, 2);
  EXPECT_FALSE(lane.has_failed());
  lane.post(5);
  lane.finish();
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace trireme::runtime

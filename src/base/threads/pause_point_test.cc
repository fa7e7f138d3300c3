// Tests that threads pause at a point while it is held, and that threads without the point do not.
#include "base/threads/pause_point.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace trireme::base {
namespace {

void wait_for(const PausePoint& point, int threads) {
  while (point.waiting() < threads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(PausePoint, HoldsThreadsUntilItIsReleased) {
  PausePoint point;
  point.pass();
  point.hold();
  point.hold();
  std::atomic<int> past{0};
  const auto work = [&] {
    const PausePoint::Scope here(&point);
    PausePoint::of_this_thread()->pass();
    ++past;
  };
  std::thread first(work), second(work);
  wait_for(point, 2);
  EXPECT_EQ(past, 0);
  point.release();
  first.join();
  second.join();
  EXPECT_EQ(past, 2);
  EXPECT_EQ(point.waiting(), 0);
  EXPECT_EQ(point.passes(), 3U);
  point.release();
  EXPECT_EQ(point.changes(), 2U) << "holding what is held and releasing what is free change nothing";
}

TEST(PausePoint, BelongsToAThreadForAsLongAsItsScope) {
  PausePoint outer, inner;
  EXPECT_EQ(PausePoint::of_this_thread(), nullptr);
  {
    const PausePoint::Scope a(&outer);
    {
      const PausePoint::Scope b(&inner);
      EXPECT_EQ(PausePoint::of_this_thread(), &inner);
      std::thread([] { EXPECT_EQ(PausePoint::of_this_thread(), nullptr); }).join();
    }
    EXPECT_EQ(PausePoint::of_this_thread(), &outer);
  }
  EXPECT_EQ(PausePoint::of_this_thread(), nullptr);
}

}  // namespace
}  // namespace trireme::base

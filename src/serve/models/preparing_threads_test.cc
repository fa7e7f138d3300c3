// Tests threads that prepare requests: order, refusal when full, and an end that leaves no task behind.
#include "serve/models/preparing_threads.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "base/error.h"

namespace trireme::serve {
namespace {

/// Blocks tasks until it is opened.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_; });
  }
  void await(int inside) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_ >= inside; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int inside_ = 0;
};

base::ErrorCode code_of_submit(PreparingThreads& threads) {
  try {
    threads.submit([] {});
  } catch (const base::Error& e) {
    return e.code();
  }
  return base::ErrorCode::internal;
}

TEST(PreparingThreads, TheCallerGoesOnWhileTasksRunAndSeveralRunAtOnce) {
  Gate gate;
  PreparingThreads threads(2, 10);
  for (int i = 0; i < 2; ++i) threads.submit([&] { gate.pass(); });
  gate.await(2);  // both tasks run at once, besides this thread
  EXPECT_EQ(threads.waiting(), 2u);
  gate.open();
  threads.drain();
  EXPECT_EQ(threads.waiting(), 0u);
}

TEST(PreparingThreads, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  PreparingThreads threads(1, 1000);
  for (int i = 0; i < 500; ++i) threads.submit([&order, i] { order.push_back(i); });
  threads.drain();
  ASSERT_EQ(order.size(), 500u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(PreparingThreads, TooManyAreRefusedAndTheEndRunsWhatWaits) {
  Gate gate;
  int ran = 0;
  PreparingThreads threads(1, 2);
  threads.submit([&] { gate.pass(); });
  gate.await(1);
  threads.submit([&] { ++ran; });
  threads.submit([&] { ++ran; });
  EXPECT_EQ(code_of_submit(threads), base::ErrorCode::exhausted);
  gate.open();
  threads.stop();
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(code_of_submit(threads), base::ErrorCode::unavailable);
}

}  // namespace
}  // namespace trireme::serve

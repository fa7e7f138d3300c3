// Tests that silent streams get comments, and that ended, abandoned or busy streams do not.
#include "serve/openai/stream_keeper.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.h"

namespace trireme::serve {
namespace {

constexpr int64_t kIntervalNs = 10 * base::kNsPerMs;

/// Counts the comments it would have sent; ends after `until` of them.
class Counted final : public KeptStream {
 public:
  explicit Counted(int until) : until_(until), sent_ns_(base::SystemClock().now_ns()) {}

  bool keep_alive(int64_t now_ns, int64_t interval_ns) override {
    EXPECT_FALSE(is_over_) << "asked again once it was over";
    if (now_ns - sent_ns_ < interval_ns) return true;
    shortest_ns_ = std::min<int64_t>(shortest_ns_, now_ns - sent_ns_);
    sent_ns_ = now_ns;
    is_over_ = ++comments == until_;
    comments.notify_all();
    return !is_over_;
  }

  void wait(int count) const {
    for (int now = comments; now < count; now = comments) comments.wait(now);
  }
  int64_t shortest_ns() const { return shortest_ns_; }

  std::atomic<int> comments{0};

 private:
  const int until_;
  int64_t sent_ns_, shortest_ns_ = INT64_MAX;
  bool is_over_ = false;
};

TEST(StreamKeeper, SendsCommentsUntilAStreamIsOver) {
  const auto endless = std::make_shared<Counted>(INT32_MAX), short_one = std::make_shared<Counted>(2);
  auto gone = std::make_shared<Counted>(INT32_MAX);
  {
    StreamKeeper keeper(kIntervalNs);
    keeper.keep(endless);
    keeper.keep(short_one);
    keeper.keep(gone);
    short_one->wait(2);
    gone.reset();
    endless->wait(6);
    // Adds a stream while others are being checked, and one when the keeper has no other streams.
    const auto late = std::make_shared<Counted>(1);
    keeper.keep(late);
    late->wait(1);
  }
  EXPECT_EQ(short_one->comments, 2);
  EXPECT_GE(endless->shortest_ns(), kIntervalNs);
  const int count = endless->comments;
  std::this_thread::sleep_for(std::chrono::nanoseconds(3 * kIntervalNs));
  EXPECT_EQ(endless->comments, count) << "the keeper is gone";
}

TEST(StreamKeeper, WakesUpForTheFirstStream) {
  StreamKeeper keeper(kIntervalNs);
  for (int turn = 0; turn < 3; ++turn) {
    const auto stream = std::make_shared<Counted>(1);
    keeper.keep(stream);
    stream->wait(1);
    std::this_thread::sleep_for(std::chrono::nanoseconds(kIntervalNs));
  }
}

TEST(StreamKeeper, WithoutAnIntervalKeepsNothing) {
  const auto stream = std::make_shared<Counted>(1);
  StreamKeeper keeper(0);
  keeper.keep(stream);
  std::this_thread::sleep_for(std::chrono::nanoseconds(2 * kIntervalNs));
  EXPECT_EQ(stream->comments, 0);
}

}  // namespace
}  // namespace trireme::serve

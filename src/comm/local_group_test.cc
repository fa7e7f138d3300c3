// Exchanges between local ranks that fail: who sends waits for a peer that copies, and for nobody else.
#include "comm/local_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace trireme::comm {
namespace {

/// Rank 0 of three sends to rank 1 and receives from rank 2, on a thread of its own. The test is the others.
struct Exchange {
  LocalFaults faults;
  std::shared_ptr<LocalGroup> group = std::make_shared<LocalGroup>(faults, std::vector<int>{0, 1, 2});
  std::vector<float> out = std::vector<float>(8, 1.0f), in = std::vector<float>(8);
  std::future<void> done;

  Exchange() {
    faults.add(group);
    done = std::async(std::launch::async, [this] {
      LocalCommunicator own(group, 0);
      Communicator& rank = own;
      rank.exchange(as_bytes(std::span(out)), as_bytes(std::span(in)), {.to = 1, .from = 2});
    });
    while (sent().load() != Channel::kPosted) std::this_thread::yield();
  }
  std::atomic<uint32_t>& sent() { return group->channel(0, 1).word; }
  bool is_over(std::chrono::milliseconds limit) { return done.wait_for(limit) == std::future_status::ready; }
};

constexpr std::chrono::milliseconds kSoon{200};
constexpr std::chrono::seconds kLate{60};

TEST(LocalGroup, ASenderThatReceivesNothingWaitsForItsCopy) {
  Exchange exchange;
  exchange.sent().store(Channel::kTaken);  // rank 1 begins to copy
  exchange.faults.fail(base::ErrorCode::unavailable, "rank 2 is gone");
  EXPECT_FALSE(exchange.is_over(kSoon));
  exchange.sent().fetch_and(~Channel::kPhase);  // rank 1 has copied
  exchange.sent().notify_all();
  EXPECT_TRUE(exchange.is_over(kLate));
  EXPECT_THROW(exchange.done.get(), base::Error);
}

TEST(LocalGroup, ASenderWhosePeerHasNotBegunWithdraws) {
  Exchange exchange;
  exchange.faults.fail(base::ErrorCode::unavailable, "rank 2 is gone");
  EXPECT_TRUE(exchange.is_over(kLate));
  EXPECT_THROW(exchange.done.get(), base::Error);
  EXPECT_EQ(exchange.sent().load(), Channel::kFailed);
}

}  // namespace
}  // namespace trireme::comm

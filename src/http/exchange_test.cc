// The mailbox between threads: when a sleeping loop is woken.
#include "http/exchange.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "http/reply.h"

namespace trireme::http {
namespace {

struct CountedMail final : Mail {
  int* delivered;
  explicit CountedMail(int* count) : delivered(count) {}
  void deliver() override {
    ++*delivered;
    delete this;
  }
  void discard() override { delete this; }
};

/// How often the loop was woken since it was last asked.
uint64_t wakes(const Mailbox& mailbox) {
  uint64_t count = 0;
  return read(mailbox.wake_fd(), &count, sizeof count) == sizeof count ? count : 0;
}

TEST(Mailbox, ASleepingLoopIsWokenByTheFirstMail) {
  const auto mailbox = std::make_shared<Mailbox>();
  int delivered = 0;
  ASSERT_TRUE(mailbox->about_to_sleep());
  for (int i = 0; i < 3; ++i) mailbox->post(new CountedMail(&delivered));
  EXPECT_EQ(wakes(*mailbox), 1u);
  EXPECT_TRUE(mailbox->deliver_all());
  EXPECT_EQ(delivered, 3);
}

TEST(Mailbox, HeldWakesWakeEachLoopOnceAtTheirEnd) {
  const auto one = std::make_shared<Mailbox>(), other = std::make_shared<Mailbox>();
  int delivered = 0;
  ASSERT_TRUE(one->about_to_sleep());
  ASSERT_TRUE(other->about_to_sleep());
  {
    const HeldWakes outer;
    {
      const HeldWakes inner;
      other->post(new CountedMail(&delivered));
    }
    EXPECT_EQ(wakes(*other), 1u);  // the scope in which it was posted has ended
    for (int i = 0; i < 3; ++i) {
      one->post(new CountedMail(&delivered));
      EXPECT_EQ(wakes(*one), 0u);
      // As if another event had woken the loop meanwhile.
      one->woke_up();
      EXPECT_TRUE(one->deliver_all());
      ASSERT_TRUE(one->about_to_sleep());
    }
    one->post(new CountedMail(&delivered));
  }
  EXPECT_EQ(wakes(*one), 1u);
  EXPECT_EQ(wakes(*other), 0u);
  EXPECT_TRUE(one->deliver_all());
  EXPECT_EQ(delivered, 4);
}

TEST(Mailbox, HeldWakesLeaveAnAwakeLoopAlone) {
  const auto mailbox = std::make_shared<Mailbox>();
  int delivered = 0;
  {
    const HeldWakes held;
    mailbox->post(new CountedMail(&delivered));
  }
  EXPECT_EQ(wakes(*mailbox), 0u);
  EXPECT_FALSE(mailbox->about_to_sleep());
}

TEST(Mailbox, MoreLoopsThanAScopeHoldsAreWokenAtOnce) {
  std::vector<std::shared_ptr<Mailbox>> loops(20);
  int delivered = 0;
  size_t at_once = 0;
  {
    const HeldWakes held;
    for (auto& loop : loops) {
      loop = std::make_shared<Mailbox>();
      ASSERT_TRUE(loop->about_to_sleep());
      loop->post(new CountedMail(&delivered));
      at_once += wakes(*loop);
    }
  }
  EXPECT_EQ(at_once, 4u);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(wakes(*loops[i]), 1u);
}

}  // namespace
}  // namespace trireme::http

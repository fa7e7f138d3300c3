// Tests slots of sequences: whose turn it is, who exceeds its share, and how many may wait.
#include "serve/batched/sequence_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace trireme::serve {
namespace {

/// Sequences with keys of one letter, and tenants given by number.
struct Trial {
  explicit Trial(size_t slot_count) : slots(slot_count) {}
  void join(const std::string& key, uint32_t tenant, double weight = 1, int64_t now_ns = 0) {
    claims.emplace(key, slots.join(key, tenant, weight, now_ns));
  }
  /// Gives all slots that are free; returns the keys in order.
  std::string give() {
    std::string given;
    while (const std::string* key = slots.next()) {
      given += *key;
      slots.give(claims.at(given.substr(given.size() - 1)));
    }
    return given;
  }
  void leave(const std::string& key) {
    slots.leave(claims.at(key));
    claims.erase(key);
  }
  SequenceSlots slots;
  std::map<std::string, SequenceSlots::Claim> claims;
};

TEST(SequenceSlots, OneTenantHasThemAllInTheOrderOfItsWaiting) {
  Trial t(2);
  for (const char* key : {"d", "a", "c", "b"}) t.join(key, 7);
  EXPECT_EQ(t.give(), "da");
  EXPECT_EQ(t.claims.at("d").slot(), 0u);
  EXPECT_EQ(t.claims.at("a").slot(), 1u);
  t.leave("b");  // still in the queue
  t.leave("d");
  EXPECT_EQ(t.give(), "c");
  EXPECT_EQ(t.claims.at("c").slot(), 0u);  // the lowest slot that was used before
  EXPECT_FALSE(t.slots.debtor(1'000'000, 0));
}

TEST(SequenceSlots, FreeSlotsGoToWhoHasFewestForItsWeight) {
  Trial t(6);
  for (const char* key : {"a", "b", "c", "d", "e", "f"}) t.join(key, 1);
  for (const char* key : {"A", "B", "C", "D", "E", "F"}) t.join(key, 2, 2);
  EXPECT_EQ(t.give(), "aABbCD");  // 2 and 4 of the 6 slots
  t.leave("a");
  EXPECT_EQ(t.give(), "c");
}

TEST(SequenceSlots, WhoHasMoreThanItsShareOwesASlotToWhoWaits) {
  Trial t(4);
  for (const char* key : {"a", "b", "c", "d"}) t.join(key, 1);
  t.give();
  EXPECT_FALSE(t.slots.debtor(1'000, 100));  // nobody else waits
  t.join("e", 1);
  EXPECT_FALSE(t.slots.debtor(1'000, 100));  // only its own sequences wait
  t.join("x", 2, 1, 1'000);
  EXPECT_FALSE(t.slots.debtor(1'100, 100));  // x has not waited long enough
  EXPECT_EQ(t.slots.debtor(1'101, 100), 1u);
  t.leave("d");
  EXPECT_EQ(t.give(), "x");
  t.join("y", 2, 1, 2'000);
  EXPECT_EQ(t.slots.debtor(3'000, 100), 1u);
  t.leave("c");
  EXPECT_EQ(t.give(), "y");
  t.join("z", 2, 1, 3'000);
  EXPECT_FALSE(t.slots.debtor(9'000, 100));  // two each
}

TEST(SequenceSlots, MoreTenantsThanSlotsHaveOneEach) {
  Trial t(2);
  t.join("a", 1);
  t.join("b", 1);
  t.give();
  t.join("x", 2);
  t.join("y", 3);
  EXPECT_EQ(t.slots.debtor(10, 1), 1u);
  t.leave("b");
  EXPECT_EQ(t.give(), "x");
  EXPECT_FALSE(t.slots.debtor(10, 1));  // the third waits until one ends
}

TEST(SequenceSlots, ATenantOfSmallWeightHoldsNobodyElsesSlotAgainstItsOwn) {
  Trial t(4);
  t.join("s", 1, 0.01);
  for (const char* key : {"a", "b", "c"}) t.join(key, 2);
  t.give();
  t.join("x", 3);
  EXPECT_EQ(t.slots.debtor(10, 1), 2u);  // tenant 1 has most for its weight, but only one slot
}

TEST(SequenceSlots, WaitingRequestsAreSharedTheSame) {
  Trial t(1);
  t.join("a", 1);
  auto& flood = t.claims.at("a");
  t.slots.count(flood, 10);
  EXPECT_TRUE(t.slots.may_wait(1, 1, 9, 10));
  EXPECT_FALSE(t.slots.may_wait(1, 1, 10, 10));
  EXPECT_TRUE(t.slots.may_wait(2, 1, 10, 10));
  t.join("x", 2);
  t.slots.count(t.claims.at("x"), 5);
  EXPECT_FALSE(t.slots.may_wait(2, 1, 15, 10));
  t.slots.count(flood, -6);
  EXPECT_TRUE(t.slots.may_wait(1, 1, 10, 10));
}

/// After any sequence of operations: slots in use are distinct and below their number, no slot is idle while
/// somebody waits, and moving slots to those entitled to them ends with nobody left entitled to more.
TEST(SequenceSlots, AnyComingAndGoing) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    const size_t count = 1 + random() % 9;
    Trial t(count);
    std::vector<std::string> keys;
    for (int step = 0; step < 200; ++step) {
      if (random() % 2 == 0 && keys.size() < 60) {
        keys.push_back(std::string(1, static_cast<char>('0' + step % 70)));
        if (t.claims.count(keys.back()) > 0) {
          keys.pop_back();
          continue;
        }
        const auto tenant = static_cast<uint32_t>(random() % 4);
        t.join(keys.back(), tenant, tenant + 1);
      } else if (!keys.empty()) {
        const size_t i = random() % keys.size();
        t.leave(keys[i]);
        keys.erase(keys.begin() + static_cast<std::ptrdiff_t>(i));
      }
      t.give();
      for (size_t moves = 0; const auto debtor = t.slots.debtor(1, 0); ++moves) {
        ASSERT_LT(moves, count);
        const auto victim = std::find_if(t.claims.begin(), t.claims.end(), [&](const auto& entry) {
          return entry.second.has_slot() && entry.second.tenant() == *debtor;
        });
        ASSERT_NE(victim, t.claims.end());
        const std::string key = victim->first;
        t.leave(key);
        std::erase(keys, key);
        ASSERT_EQ(t.give().size(), 1u);
      }
      std::set<size_t> used;
      for (const auto& [key, claim] : t.claims) {
        if (!claim.has_slot()) continue;
        ASSERT_LT(claim.slot(), count);
        ASSERT_TRUE(used.insert(claim.slot()).second);
      }
      ASSERT_EQ(used.size(), std::min(count, t.claims.size()));
    }
  }
}

}  // namespace
}  // namespace trireme::serve

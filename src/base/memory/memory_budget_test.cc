// Tests the memory budget: leases are returned, the limit holds against many threads, and small requests find
// room beyond it.
#include "base/memory/memory_budget.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"

namespace trireme::base {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(MemoryBudget, TakesUpToTheLimitAndGivesBack) {
  MemoryBudget budget(10 * kMiB);
  MemoryLease bodies(MemoryUse::bodies, 6 * kMiB, budget);
  EXPECT_THROW(MemoryLease(MemoryUse::tensors, 5 * kMiB, budget), Error);
  EXPECT_EQ(budget.used_bytes(), 6 * kMiB);
  EXPECT_EQ(budget.refused(), 1u);
  MemoryLease tensors(MemoryUse::tensors, 4 * kMiB, budget);
  EXPECT_EQ(budget.used_bytes(MemoryUse::tensors), 4 * kMiB);
  EXPECT_TRUE(budget.is_tight());
  EXPECT_FALSE(bodies.try_resize(7 * kMiB));
  EXPECT_EQ(bodies.bytes(), 6 * kMiB);
  EXPECT_TRUE(bodies.try_resize(kMiB));
  EXPECT_FALSE(budget.is_tight());
  MemoryLease moved = std::move(bodies);
  bodies = MemoryLease();
  EXPECT_EQ(budget.used_bytes(), 5 * kMiB);
  moved = MemoryLease();
  tensors.resize(0);
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(MemoryBudget, RefusalsSayWhatIsTaken) {
  MemoryBudget budget(2 * kMiB);
  try {
    MemoryLease(MemoryUse::answers, 3 * kMiB, budget);
    FAIL() << "more than there is was given";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::exhausted);
    EXPECT_NE(e.message().find("3145728 bytes of answers are wanted, of 2097152 bytes allowed, 0 are in use"),
              std::string::npos)
        << e.message();
  }
}

TEST(MemoryBudget, SmallPiecesFindRoomForAWhile) {
  MemoryBudget budget(16 * kMiB);
  ASSERT_TRUE(budget.try_take(MemoryUse::tensors, 16 * kMiB));
  EXPECT_FALSE(budget.try_take(MemoryUse::tensors, kMiB));
  int64_t small = 0;
  while (budget.try_take(MemoryUse::bodies, 4096)) small += 4096;
  EXPECT_EQ(small, kMiB);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasOwnAllocator = true;
#elif defined(__has_feature)
constexpr bool kHasOwnAllocator = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kHasOwnAllocator = false;
#endif

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

/// Pieces between which others stay: nothing but malloc_trim() gives their pages back. A large piece then
/// finds them gone, although the account, with that piece in it, would hold more than is resident.
TEST(MemoryBudget, WhatTheAllocatorKeepsGoesBackBeforeALargePiece) {
  if (kHasOwnAllocator) GTEST_SKIP() << "the allocator of the sanitizer keeps what is freed";
  constexpr size_t kPieceBytes = 60'000;
  std::vector<std::unique_ptr<char[]>> pieces;
  for (int i = 0; i < 3500; ++i) {
    pieces.push_back(std::make_unique_for_overwrite<char[]>(kPieceBytes));
    std::memset(pieces.back().get(), 1, kPieceBytes);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i % 50 != 0) pieces[i].reset();
  }
  const int64_t before = resident_bytes();
  ASSERT_GT(before, 190 * kMiB);
  MemoryBudget budget(512 * kMiB);
  const MemoryLease lease(MemoryUse::tensors, 300 * kMiB, budget);
  EXPECT_LT(resident_bytes(), before - 150 * kMiB);
}

TEST(MemoryBudget, ThreadsTogetherNeverPassTheLimit) {
  MemoryBudget budget(100 * kMiB);
  std::atomic<int64_t> held{0}, most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20'000; ++round) {
        const int64_t bytes = (1 + (round * 7 + t) % 60) * kMiB;
        if (!budget.try_take(MemoryUse::tensors, bytes)) continue;
        const int64_t now = held.fetch_add(bytes) + bytes;
        for (int64_t seen = most.load(); now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        held.fetch_sub(bytes);
        budget.give_back(MemoryUse::tensors, bytes);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_LE(most.load(), 100 * kMiB);
  EXPECT_GT(most.load(), 0);
  EXPECT_EQ(budget.used_bytes(), 0);
}

}  // namespace
}  // namespace trireme::base

// Tests that memory left by a burst is returned, and that normal use causes no returns.
#include "serve/seeing/idle_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace trireme::serve {
namespace {

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

/// Allocates 200 MB in blocks of a request's size and keeps a few, so the heap cannot shrink at its end.
std::vector<std::unique_ptr<char[]>> burst() {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < 2000; ++i) blocks.push_back(std::make_unique<char[]>(100'000));
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i % 100 != 99) blocks[i].reset();
  }
  return blocks;
}

TEST(IdleMemory, GivesBackWhatABurstLeft) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's allocator keeps books of its own";
#endif
  IdleMemory memory;
  constexpr int64_t kSecond = 1'000'000'000;
  int64_t now_ns = kSecond;
  for (int i = 0; i < 30; ++i) memory.look(now_ns += kSecond);
  const size_t before = resident_bytes();
  const auto kept = burst();
  EXPECT_GT(resident_bytes(), before + (size_t{90} << 20));
  int returned = 0;
  for (int i = 0; i < 60; ++i) returned += memory.look(now_ns += kSecond);
  EXPECT_EQ(returned, 1);  // only once
  EXPECT_LT(resident_bytes(), before + (size_t{40} << 20));
}

}  // namespace
}  // namespace trireme::serve

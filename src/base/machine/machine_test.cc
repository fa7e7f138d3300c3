// Tests what is read about the machine: values are plausible, and memory figures follow allocations.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "base/machine/cpu_info.h"
#include "base/machine/memory.h"
#include "base/machine/memory_read.h"

namespace trireme::base {
namespace {

TEST(Machine, ProcessorIsPlausible) {
  const CpuInfo info = read_cpu_info();
  EXPECT_GE(info.threads(), 1);
  EXPECT_LE(info.threads(), static_cast<int>(info.allowed.size()));
#if defined(__x86_64__)
  EXPECT_EQ(info.has("avx2"), __builtin_cpu_supports("avx2") != 0);
#endif
  EXPECT_EQ(info.to_json().at("processors").as_int(), static_cast<int64_t>(info.allowed.size()));
}

TEST(Machine, EachWordIsReadOnce) {
  for (const size_t count : {0, 1, 7, 31, 32, 33, 64, 1000, 4099}) {
    std::vector<uint64_t> words(count);
    uint64_t sum = 0;
    for (size_t i = 0; i < count; ++i) sum += words[i] = i * i + 1;
    EXPECT_EQ(read_through(words), sum) << count;
  }
}

TEST(Machine, MemoryFiguresFollowUse) {
  const int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  constexpr size_t kSize = 64 << 20;
  const bool reset = reset_peak_resident();
  // Mapped rather than allocated, because an allocator (or a sanitizer's) may keep freed memory.
  void* block = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kSize);
  EXPECT_GE(resident_bytes(), before + int64_t{kSize} / 2);
  ::munmap(block, kSize);
  EXPECT_GE(peak_resident_bytes(), before + int64_t{kSize} / 2);
  if (reset) {
    reset_peak_resident();
    EXPECT_LT(peak_resident_bytes(), before + int64_t{kSize} / 2);
  }
  EXPECT_GT(memory_limit_bytes(), peak_resident_bytes());
}

}  // namespace
}  // namespace trireme::base

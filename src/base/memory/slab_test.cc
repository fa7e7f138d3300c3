// Tests the slab: pieces are aligned, disjoint, zeroed at first, and outlive the slab.
#include "base/memory/slab.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace trireme::base {
namespace {

TEST(Slab, PiecesAreAlignedApartAndOutliveIt) {
  std::vector<std::pair<std::shared_ptr<char>, size_t>> pieces;
  {
    const Slab slab;
    for (size_t bytes : {0u, 1u, 63u, 64u, 65u, 5000u, 3u << 20, 80u << 20, 7u, 60u << 20, 10u << 20})
      pieces.emplace_back(slab.allocate(bytes), bytes);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces[i].first.get()) % 64, 0u);
    for (size_t at = 0; at < pieces[i].second; at += 4096) EXPECT_EQ(pieces[i].first.get()[at], 0);
    std::memset(pieces[i].first.get(), static_cast<int>(i + 1), pieces[i].second);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].second == 0) continue;
    EXPECT_EQ(pieces[i].first.get()[0], static_cast<char>(i + 1));
    EXPECT_EQ(pieces[i].first.get()[pieces[i].second - 1], static_cast<char>(i + 1));
  }
}

TEST(MapMemory, LargeMappingsBeginOnAHugePage) {
  for (size_t bytes : {size_t{1}, size_t{4097}, size_t{2} << 20, (size_t{5} << 20) + 3}) {
    const std::shared_ptr<void> memory = map_memory(bytes);
    const size_t unit = bytes >= size_t{2} << 20 ? size_t{2} << 20 : 1;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % unit, 0u);
    std::memset(memory.get(), 1, bytes);
  }
}

}  // namespace
}  // namespace trireme::base

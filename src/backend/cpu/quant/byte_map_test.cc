// Maps of bytes through a table at every SIMD level, for all lengths around a vector, also in place.
#include "backend/cpu/quant/byte_map.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "backend/cpu/simd/simd_level.h"

namespace trireme::cpu {
namespace {

TEST(ByteMap, EveryLevelLooksUpEveryByte) {
  std::mt19937 random(3);
  ByteTable table;
  for (uint8_t& entry : table) entry = static_cast<uint8_t>(random());
  base::ThreadPool pool(3);
  for (const SimdLevel& level : simd_levels()) {
    simd_force(level);
    for (const int64_t n : {0, 1, 15, 16, 31, 33, 63, 64, 65, 256, 1000, 100003}) {
      std::vector<uint8_t> x(static_cast<size_t>(n)), want, y(x.size(), 7);
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(n == 256 ? i : random());
      for (const uint8_t byte : x) want.push_back(table[byte]);
      map_bytes(table, x.data(), y.data(), n, pool);
      EXPECT_EQ(y, want) << level.name << " " << n;
      map_bytes(table, x.data(), x.data(), n, pool);
      EXPECT_EQ(x, want) << level.name << " in place, " << n;
    }
  }
  simd_unforce();
}

}  // namespace
}  // namespace trireme::cpu

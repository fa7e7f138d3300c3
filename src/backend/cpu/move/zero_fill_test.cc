// Zero fills of every alignment and size class write what they should and nothing else.
#include "backend/cpu/move/zero_fill.h"

#include <gtest/gtest.h>

#include <vector>

namespace trireme::cpu {
namespace {

TEST(ZeroFill, FillsExactlyItsBytes) {
  base::ThreadPool pool(3);
  for (int64_t bytes :
       {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{4097}, int64_t{700001}, int64_t{9000011}}) {
    for (int64_t shift : {0, 1, 63}) {
      std::vector<unsigned char> memory(static_cast<size_t>(bytes + 130), 7);
      zero_fill(memory.data() + shift, bytes, pool);
      int64_t zeros = 0;
      for (unsigned char c : memory) zeros += c == 0;
      EXPECT_EQ(zeros, bytes);
      if (shift > 0) {
        EXPECT_EQ(memory[static_cast<size_t>(shift - 1)], 7);
      }
      EXPECT_EQ(memory[static_cast<size_t>(shift + bytes)], 7);
    }
  }
}

}  // namespace
}  // namespace trireme::cpu

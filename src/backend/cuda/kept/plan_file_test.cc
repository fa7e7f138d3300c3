// Files of plans: reading returns what was written, and no other bytes are accepted.
#include "backend/cuda/kept/plan_file.h"

#include <gtest/gtest.h>

#include "base/crc32c.h"

namespace trireme::cuda {
namespace {

const std::string kKey = "NVIDIA H100 driver 13000 cudnn 92600\nconvolution 64,3,7";

TEST(PlanFile, GivesWhatWasWritten) {
  for (const std::string& body : {std::string(), std::string("x"), std::string(100000, '\0')}) {
    const std::string file = plan_file(kKey, body);
    const PlanFile read = read_plan_file(file, kKey);
    EXPECT_EQ(read.problem, "");
    EXPECT_EQ(read.body, body);
  }
}

TEST(PlanFile, AnyCutAndAnyFlippedBitIsFound) {
  const std::string file = plan_file("key", "what was kept");
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_NE(read_plan_file(std::string_view(file).substr(0, size), "key").problem, "") << size;
  EXPECT_NE(read_plan_file(file + "x", "key").problem, "");
  for (size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string wrong = file;
    wrong[bit / 8] = static_cast<char>(wrong[bit / 8] ^ 1 << bit % 8);
    const PlanFile read = read_plan_file(wrong, "key");
    EXPECT_NE(read.problem, "") << bit;
    EXPECT_EQ(read.body, "") << bit;
  }
}

TEST(PlanFile, AnotherKeyIsAnother) {
  EXPECT_EQ(read_plan_file(plan_file("a", "body"), "b").problem, "is of another key");
  // The boundary between key and body matters.
  EXPECT_EQ(read_plan_file(plan_file("ab", "c"), "abc").problem, "is of another key");
}

TEST(PlanFile, LengthsThatOverflowAreRefused) {
  // A header that claims 2^64 - 1 bytes of body after 2 bytes of key, with a matching checksum.
  std::string covered("\2\0\0\0", 4);
  covered += std::string(8, '\xff') + "ab";
  std::string file = "TRPLAN1\n";
  for (int i = 0; i < 4; ++i) file += static_cast<char>(base::crc32c(covered) >> 8 * i & 0xff);
  EXPECT_EQ(read_plan_file(file + covered, "ab").problem, "is cut short");
}

TEST(PlanFile, DigestsDiffer) {
  EXPECT_EQ(digest_of("a").size(), 32u);
  EXPECT_NE(digest_of("a"), digest_of("b"));
  EXPECT_EQ(digest_of(""), "cbf29ce48422232584222325cbf29ce4");
}

}  // namespace
}  // namespace trireme::cuda

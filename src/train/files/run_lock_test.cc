// Tests two runs in one directory: the second one is refused until the first has ended.
#include "train/files/run_lock.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "base/error.h"

namespace trireme::train {
namespace {

TEST(RunLock, OneProcessAtATime) {
  const std::string path = testing::TempDir() + "run_lock/run";
  std::filesystem::remove_all(path);
  std::optional<RunLock> first(std::in_place, path);
  EXPECT_TRUE(std::filesystem::is_directory(path));
  try {
    RunLock second(path, std::chrono::milliseconds(30));
    FAIL() << "two runs hold one directory";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::unavailable);
    EXPECT_NE(e.message().find("another process trains in"), std::string::npos) << e.message();
  }
  first.reset();
  RunLock third(path, std::chrono::milliseconds(0));
  EXPECT_TRUE(std::filesystem::is_empty(path));  // the lock leaves no file
}

}  // namespace
}  // namespace trireme::train

// Files of a job's state: what makes the client of a network file system look again.
#include "batch/state/posix_file.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "batch/state/test_directory.h"

namespace trireme::batch {
namespace {

TEST(PosixFile, ForgettingAbsentNamesChangesTheDirectoryAndLeavesNothing) {
  const std::string directory = fresh("absent");
  const auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  for (const bool is_left : {false, true}) {  // by a process that was killed between the two steps
    if (is_left) overwrite(directory + "/look", "");
    std::filesystem::last_write_time(directory, long_ago);
    forget_absent_names(directory, "look");
    EXPECT_GT(std::filesystem::last_write_time(directory), long_ago + std::chrono::minutes(30));
    EXPECT_TRUE(std::filesystem::is_empty(directory));
  }
}

}  // namespace
}  // namespace trireme::batch

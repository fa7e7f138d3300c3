// Tests the listing of a directory's names.
#include "base/files/directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace trireme::base {
namespace {

TEST(Directory, NamesAreSortedAndErrorsTold) {
  const std::string root = testing::TempDir() + "names_in";
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root + "/b");
  for (const char* name : {"/c", "/.hidden", "/a"}) std::ofstream(root + name) << "x";
  std::error_code error = std::make_error_code(std::errc::io_error);
  EXPECT_EQ(names_in(root, error), (std::vector<std::string>{".hidden", "a", "b", "c"}));
  EXPECT_FALSE(error);
  EXPECT_TRUE(names_in(root + "/none", error).empty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
  EXPECT_TRUE(names_in(root + "/a", error).empty());
  EXPECT_EQ(error, std::errc::not_a_directory);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace trireme::base

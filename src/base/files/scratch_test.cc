// Tests that a scratch directory goes with its owner or, if the owner was killed, with the next clean-up.
#include "base/files/scratch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace trireme::base {
namespace {

namespace fs = std::filesystem;

TEST(Scratch, GoesWithItsOwner) {
  std::shared_ptr<const std::string> path = make_scratch("trireme-test-own-");
  const std::string text = *path;
  fs::create_directories(text + "/a/b");
  std::ofstream(text + "/a/b/c") << "c";
  EXPECT_EQ(fs::status(text).permissions() & (fs::perms::group_all | fs::perms::others_all), fs::perms::none);
  EXPECT_EQ(remove_stale_scratch("trireme-test-own-"), 0);  // it is in use
  EXPECT_TRUE(fs::exists(text + "/a/b/c"));
  path.reset();
  EXPECT_FALSE(fs::exists(text));
}

TEST(Scratch, WhatAKilledProcessLeftIsRemoved) {
  const std::string prefix = "trireme-test-kill-" + std::to_string(getpid()) + "-";
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto path = make_scratch(prefix);
    std::ofstream(*path + "/file") << "contents";
    if (write(pipe_fds[1], path->data(), path->size()) < 0) _exit(1);
    for (;;) pause();
  }
  char text[512] = {};
  ASSERT_GT(read(pipe_fds[0], text, sizeof text - 1), 0);
  EXPECT_EQ(remove_stale_scratch(prefix), 0);  // the child holds the lock
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(std::string(text) + "/file"));
  EXPECT_EQ(remove_stale_scratch(prefix), 1);
  EXPECT_FALSE(fs::exists(text));
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

}  // namespace
}  // namespace trireme::base

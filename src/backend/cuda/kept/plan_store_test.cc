// The plan store: one process makes a plan, all use it; a damaged, refused or unwritable entry costs only
// time.
#include "backend/cuda/kept/plan_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "backend/cuda/kept/plan_file.h"
#include "base/error.h"
#include "base/files/file.h"
#include "base/files/scratch.h"

namespace trireme::cuda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class PlanStoreTest : public testing::Test {
 protected:
  /// Result of one process: the plan for `key`, and whether the process made it.
  struct Got {
    std::string body;
    bool made = false;
    std::string notice;
    bool operator==(const Got&) const = default;
  };
  Got get(const std::string& key, const std::string& mine, std::string_view refused = "\1") const {
    PlanStore store(directory_, most_bytes_);
    Got got;
    store.get(
        key,
        [&](std::string_view body) {
          if (body == refused) return false;
          got.body = body;
          return true;
        },
        [&] {
          got.made = true;
          return got.body = mine;
        });
    got.notice = store.take_notice();
    EXPECT_EQ(store.take_notice(), "");  // reported only once
    return got;
  }
  std::string path_of(const std::string& key) const {
    return base::concat(directory_, "/", digest_of(key), ".plan");
  }
  void overwrite(const std::string& key, const std::string& bytes) const {
    std::ofstream(path_of(key), std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
  }
  static void expect_told(const Got& got, const std::string& what) {
    EXPECT_TRUE(got.made);
    EXPECT_NE(got.notice.find(what), std::string::npos) << got.notice;
  }

  std::shared_ptr<const std::string> scratch_ = base::make_scratch("trireme-plans");
  std::string directory_ = *scratch_ + "/a/plans";
  int64_t most_bytes_ = kMiB;
};

TEST_F(PlanStoreTest, TheSecondProcessTakesWhatTheFirstMade) {
  EXPECT_EQ(get("k", "plan"), (Got{"plan", true, ""}));
  EXPECT_EQ(get("k", "other"), (Got{"plan", false, ""}));
  EXPECT_EQ(get("another", "other"), (Got{"other", true, ""}));
}

TEST_F(PlanStoreTest, DamagedAndForeignFilesAreToldAndMadeAnew) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "is no file of plans"},
      {"garbage, not a plan", "is no file of plans"},
      {plan_file("k", "plan").substr(0, 20), "is cut short"},
      {plan_file("k", "plan").substr(0, 26), "is cut short"},
      {plan_file("k", "plan") + "more", "is longer"},
      {plan_file("other", "plan"), "is of another key"}};
  for (const auto& [bytes, problem] : cases) {
    get("k", "plan");
    overwrite("k", bytes);
    expect_told(get("k", "anew"), problem);
    EXPECT_EQ(get("k", "never"), (Got{"anew", false, ""}));
    std::filesystem::remove(path_of("k"));
  }
}

TEST_F(PlanStoreTest, WhatTheLibraryRefusesIsReplaced) {
  get("k", "of an older library");
  expect_told(get("k", "new", "of an older library"), "is refused");
  EXPECT_EQ(get("k", "never"), (Got{"new", false, ""}));
}

TEST_F(PlanStoreTest, WhereNothingCanBeWrittenAllIsMade) {
  std::ofstream(*scratch_ + "/a") << "a file where the directory should be";
  for (int i = 0; i < 2; ++i) expect_told(get("k", "plan"), "cannot be written");
  directory_ = "";
  EXPECT_EQ(get("k", "plan"), (Got{"plan", true, ""}));
}

TEST_F(PlanStoreTest, AFolderInAFilesPlaceIsTold) {
  std::filesystem::create_directories(path_of("k") + "/x");
  expect_told(get("k", "plan"), "cannot be read");
}

TEST_F(PlanStoreTest, NothingToKeepIsNotKept) {
  EXPECT_EQ(get("k", ""), (Got{"", true, ""}));
  EXPECT_EQ(get("k", "plan"), (Got{"plan", true, ""}));
}

TEST_F(PlanStoreTest, TheLeastRecentlyUsedGoWhereThereIsNoRoom) {
  most_bytes_ = 3500;
  const std::string plan(1000, 'p');
  for (const char* key : {"a", "b", "c"}) {
    get(key, plan);
    // The times are far apart, because a file system's clock may advance in hundredths of a second.
    const timespec times[2] = {{1000 + *key, 0}, {1000 + *key, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path_of(key).c_str(), times, 0), 0);
  }
  EXPECT_FALSE(get("a", plan).made);  // marks it as recently used
  get("d", plan);
  EXPECT_TRUE(base::file_exists(path_of("a")));
  EXPECT_FALSE(base::file_exists(path_of("b")));
  EXPECT_TRUE(base::file_exists(path_of("c")));
  EXPECT_TRUE(base::file_exists(path_of("d")));
  get("e", std::string(5000, 'p'));  // larger than the whole store may be
  EXPECT_FALSE(base::file_exists(path_of("e")));
  EXPECT_TRUE(base::file_exists(path_of("d")));
}

TEST_F(PlanStoreTest, WhatAKilledProcessLeftHalfWrittenGoes) {
  get("k", "plan");
  const std::string left = path_of("x") + ".tmp.1.0";
  std::ofstream(left) << "half";
  get("other", "plan");
  EXPECT_FALSE(base::file_exists(left));
}

TEST_F(PlanStoreTest, TheFirstDecidesForThreadsAndProcesses) {
  // A process whose plan was stored by another in the meantime takes the stored one.
  PlanStore slow(directory_, kMiB);
  std::string mine;
  slow.get(
      "k",
      [&](std::string_view body) {
        mine = body;
        return true;
      },
      [&] {
        EXPECT_TRUE(get("k", "of the fast one").made);
        return mine = "of the slow one";
      });
  EXPECT_EQ(mine, "of the fast one");
  // Many processes at once: all end with the same plan, and none ever reads a partially written file.
  constexpr int kProcesses = 6, kKeys = 8;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      bool is_well = true;
      std::string all;
      for (int k = 0; k < kKeys; ++k) {
        const Got got = get(base::concat("key ", k), std::string(20000, static_cast<char>('a' + p)));
        is_well = is_well && got.notice.empty();
        all += got.body;
      }
      std::ofstream(base::concat(*scratch_, "/", p)) << all;
      ::_exit(is_well ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  for (int p = 1; p < kProcesses; ++p)
    EXPECT_EQ(base::read_file(base::concat(*scratch_, "/", p)), base::read_file(*scratch_ + "/0"));
}

TEST(CacheDirectory, FollowsTheEnvironment) {
  const auto with = [](const char* own, const char* xdg, const char* home) {
    const auto set = [](const char* name, const char* value) {
      if (value == nullptr) {
        ::unsetenv(name);
      } else {
        ::setenv(name, value, 1);
      }
    };
    const char* names[] = {"TRIREME_CUDA_CACHE", "XDG_CACHE_HOME", "HOME"};
    std::vector<std::optional<std::string>> before;
    for (const char* name : names) {
      const char* value = std::getenv(name);
      before.push_back(value == nullptr ? std::nullopt : std::optional<std::string>(value));
    }
    set(names[0], own), set(names[1], xdg), set(names[2], home);
    const std::string directory = cache_directory();
    for (size_t i = 0; i < 3; ++i) set(names[i], before[i] ? before[i]->c_str() : nullptr);
    return directory;
  };
  EXPECT_EQ(with("/own", "/xdg", "/h"), "/own");
  EXPECT_EQ(with("off", "/xdg", "/h"), "");
  EXPECT_EQ(with(nullptr, "/xdg", "/h"), "/xdg/trireme");
  EXPECT_EQ(with(nullptr, "relative", "/h"), "/h/.cache/trireme");
  EXPECT_EQ(with("", "", "/h"), "/h/.cache/trireme");
  EXPECT_EQ(with(nullptr, nullptr, nullptr), "");
}

}  // namespace
}  // namespace trireme::cuda

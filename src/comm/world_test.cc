// Tests the choice of ranks by environment and options, its errors, and the processors that each rank gets.
#include "comm/world.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/machine/cpu_info.h"
#include "base/error.h"

namespace trireme::comm {
namespace {

/// Sets environment variables for a while, during which all other variables of launchers are unset.
class LauncherSays {
 public:
  explicit LauncherSays(const std::map<std::string, std::string>& values) {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                             "SLURM_NTASKS", "SLURM_LOCALID", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      names_.insert(name);
      unsetenv(name);
    }
    for (const auto& [name, value] : values) setenv(name.c_str(), value.c_str(), 1);
  }
  ~LauncherSays() {
    for (const std::string& name : names_) unsetenv(name.c_str());
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  LauncherSays(const LauncherSays&) = delete;
  LauncherSays& operator=(const LauncherSays&) = delete;

 private:
  std::set<std::string> names_;
  std::map<std::string, std::string> before_;
};

TEST(World, AloneMeansLocal) {
  const LauncherSays nothing({});
  EXPECT_FALSE(launched_rank().has_value());
  EXPECT_EQ(chosen_kind({}), RankKind::local);
  EXPECT_EQ(chosen_kind({.kind = RankKind::mpi}), RankKind::mpi);
}

TEST(World, KnowsOpenMpi) {
  const LauncherSays open_mpi({{"OMPI_COMM_WORLD_SIZE", "6"},
                               {"OMPI_COMM_WORLD_RANK", "5"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  const auto rank = launched_rank();
  ASSERT_TRUE(rank.has_value());
  EXPECT_EQ(rank->launcher, "Open MPI");
  EXPECT_EQ(rank->rank * 1000 + rank->size * 100 + rank->local_rank * 10 + rank->local_size, 5612);
  EXPECT_EQ(chosen_kind({}), RankKind::mpi);
  EXPECT_EQ(chosen_kind({.kind = RankKind::local, .ranks = 2}), RankKind::local);
}

TEST(World, KnowsAStepOfSlurmFromItsBatchScript) {
  {
    const LauncherSays step(
        {{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "3"}, {"PMIX_RANK", "3"}});
    const auto rank = launched_rank();
    ASSERT_TRUE(rank.has_value());
    EXPECT_EQ(rank->launcher, "Slurm");
    EXPECT_EQ(rank->rank, 3);
    EXPECT_EQ(rank->size, 4);
  }
  const LauncherSays script({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
  EXPECT_FALSE(launched_rank().has_value());
}

TEST(World, LocalRanksRunWithTheirOwnProcessors) {
  const base::CpuInfo before = base::read_cpu_info();
  std::mutex mutex;
  std::map<int, std::vector<int>> processors;
  run_ranks({.kind = RankKind::local, .ranks = 2}, [&](Communicator& c) {
    EXPECT_EQ(c.size(), 2);
    const std::lock_guard lock(mutex);
    processors[c.rank()] = base::read_cpu_info().allowed;
  });
  ASSERT_EQ(processors.size(), 2u);
  EXPECT_EQ(processors[0].size(), processors[1].size());
  if (before.threads() >= 2) {
    std::set<int> all(processors[0].begin(), processors[0].end());
    all.insert(processors[1].begin(), processors[1].end());
    EXPECT_EQ(all.size(), processors[0].size() + processors[1].size()) << "shared processors";
    EXPECT_EQ(static_cast<int>(processors[0].size()), before.threads() / 2);
  }
  EXPECT_EQ(base::read_cpu_info().allowed, before.allowed) << "the caller's processors are given back";
  run_ranks({.kind = RankKind::local, .ranks = 2, .pin = false},
            [&](Communicator&) { EXPECT_EQ(base::read_cpu_info().allowed, before.allowed); });
}

TEST(World, FirstErrorReachesTheCaller) {
  try {
    run_ranks({.kind = RankKind::local, .ranks = 3}, [](Communicator& c) {
      if (c.rank() == 2) base::fail(base::ErrorCode::exhausted, "no memory left");
      c.barrier();
    });
    FAIL() << "no error";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::exhausted);
    EXPECT_EQ(e.message(), "rank 2: no memory left");
  }
}

}  // namespace
}  // namespace trireme::comm

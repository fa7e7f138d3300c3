// Who is away: the dead at once, the silent after the lease by the observer's clock, the living never.
#include "batch/state/worker_watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/files/file.h"
#include "batch/state/test_directory.h"
#include "batch/state/worker_seat.h"

namespace trireme::batch {
namespace {

constexpr int64_t kLease = 60 * base::kNsPerSecond;

TEST(WorkerWatch, SilentWorkersAreAwayAfterTheLease) {
  const std::string directory = fresh("watch");
  base::FakeClock clock(1'000'000'000);
  WorkerSeat own(directory), other(directory);
  WorkerWatch watch(directory, own.worker(), kLease, clock);
  const std::set<uint64_t> all{own.worker(), other.worker()};
  EXPECT_TRUE(watch.away(all).empty());
  clock.advance(kLease - 1);
  EXPECT_TRUE(watch.away(all).empty());
  other.beat();
  clock.advance(1);
  EXPECT_TRUE(watch.away(all).empty()) << "it moved since";
  clock.advance(kLease - 1);
  EXPECT_TRUE(watch.away(all).empty());
  clock.advance(1);
  EXPECT_EQ(watch.away(all), std::set<uint64_t>{other.worker()});
  other.beat();
  EXPECT_TRUE(watch.away(all).empty()) << "it is back";
}

TEST(WorkerWatch, TheDeadAreAwayAtOnce) {
  const std::string directory = fresh("dead");
  base::FakeClock clock;
  WorkerSeat own(directory);
  const pid_t child = ::fork();
  if (child == 0) {
    const WorkerSeat seat(directory);
    ::pause();
    ::_exit(0);
  }
  std::vector<uint64_t> seen;
  while (seen.size() < 2) seen = workers_in(directory);
  const uint64_t other = seen[0] == own.worker() ? seen[1] : seen[0];
  WorkerWatch watch(directory, own.worker(), kLease, clock);
  EXPECT_TRUE(watch.away({other}).empty());
  EXPECT_FALSE(is_dead(directory, other));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(watch.away({other}), std::set<uint64_t>{other});
  const std::string temporary = directory + "/tmp";
  std::filesystem::create_directories(temporary + "/" + worker_name(other));
  std::filesystem::create_directories(temporary + "/" + worker_name(own.worker()));
  base::write_file_atomic(directory + "/0123456789abcdef.new", "never locked");
  remove_dead(directory, temporary);
  EXPECT_EQ(workers_in(directory), std::vector<uint64_t>{own.worker()});
  EXPECT_EQ(workers_in(temporary), std::vector<uint64_t>{own.worker()});
  EXPECT_FALSE(base::file_exists(directory + "/0123456789abcdef.new"));
}

TEST(WorkerWatch, WhoSitsDownWhileAnotherTidiesKeepsItsFiles) {
  const std::string directory = fresh("sits_down"), temporary = directory + "/tmp";
  std::filesystem::create_directories(temporary);
  std::atomic<bool> ends{false};
  std::thread tidier([&] {
    while (!ends) remove_dead(directory, temporary);
  });
  int lost = 0;
  for (int worker = 0; worker < 2000; ++worker) {
    const WorkerSeat seat(directory);
    const std::string own = temporary + "/" + worker_name(seat.worker());
    std::filesystem::create_directory(own);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lost += !std::filesystem::exists(own);
    std::filesystem::remove_all(own);
  }
  ends = true;
  tidier.join();
  EXPECT_EQ(lost, 0);
}

TEST(WorkerSeat, GoesWithItsWorker) {
  const std::string directory = fresh("seat");
  std::optional<WorkerSeat> seat(std::in_place, directory);
  const uint64_t worker = seat->worker();
  EXPECT_FALSE(is_dead(directory, worker));
  seat.reset();
  EXPECT_TRUE(is_dead(directory, worker));
  EXPECT_TRUE(std::filesystem::is_empty(directory));
}

}  // namespace
}  // namespace trireme::batch

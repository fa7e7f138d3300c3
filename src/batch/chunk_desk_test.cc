// What a worker finds when it comes back after others took its chunks over, and the life that it shows.
#include "batch/chunk_desk.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/files/file.h"
#include "batch/job_plan.h"
#include "batch/state/test_directory.h"

namespace trireme::batch {
namespace {

TEST(ChunkDesk, AChunkInHandIsNotTakenASecondTime) {
  constexpr uint64_t kJob = 7;
  JobOptions options;
  options.output_directory = fresh("desk");
  options.output_format = "jsonl";
  const JobDirectory directory = directory_of(options, 3);
  std::filesystem::create_directories(directory.workers());
  base::Log log(base::LogLevel::off);
  base::SystemClock clock;
  const auto store = data::store_of(directory.output);
  ChunkDesk desk(directory, kJob, *store, 60 * base::kNsPerSecond, {log, clock});
  Journal journal(directory.journal(), kJob, 3);
  const auto another = [&](RecordKind kind, int64_t chunk) {
    journal.transact([&](Transaction& t) { t.add({.kind = kind, .worker = 5, .token = 1, .chunk = chunk}); });
  };
  int published = 0;
  const auto publish = [&](const ChunkTable&) {
    ++published;
    return Effort{};
  };
  using Taken = std::optional<int64_t>;
  EXPECT_EQ(desk.take(), Taken(0));
  another(RecordKind::lease, 0);
  another(RecordKind::given_back, 0);
  EXPECT_EQ(desk.take(), Taken(1)) << "chunk 0 is leased again, for the work that is in hand";
  EXPECT_EQ(desk.commit(0, {}, publish), ChunkDesk::Verdict::committed);
  another(RecordKind::lease, 1);
  EXPECT_EQ(desk.commit(1, {}, publish), ChunkDesk::Verdict::lost);
  EXPECT_EQ(desk.commit(1, {}, publish), ChunkDesk::Verdict::lost) << "it is in hand no more";
  EXPECT_EQ(published, 1);
}

TEST(ChunkDesk, ShowsLifeWhileItWaitsForTheJournal) {
  constexpr uint64_t kJob = 7;
  JobOptions options;
  options.output_directory = fresh("life");
  options.output_format = "jsonl";
  const JobDirectory directory = directory_of(options, 3);
  std::filesystem::create_directories(directory.workers());
  base::Log log(base::LogLevel::off);
  base::SystemClock clock;
  const auto store = data::store_of(directory.output);
  ChunkDesk desk(directory, kJob, *store, base::kNsPerSecond, {log, clock});
  PosixFile another(directory.journal(), O_RDWR);
  ASSERT_TRUE(another.try_lock());
  std::optional<int64_t> taken;
  std::thread waiting([&] { taken = desk.take(); });
  // It waits by then, and a beat that was under way has passed.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::string seat = directory.workers() + "/" + worker_name(desk.worker());
  int beats = 0;
  std::string before = base::read_file(seat);
  for (int i = 0; i < 500 && beats < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::string now = base::read_file(seat);
    beats += now == before ? 0 : 1;
    before = std::move(now);
  }
  EXPECT_EQ(beats, 3);
  another.unlock();
  waiting.join();
  EXPECT_EQ(taken, std::optional<int64_t>(0));
}

}  // namespace
}  // namespace trireme::batch

// What a worker finds when it comes back after others took its chunks over.
#include "batch/chunk_desk.h"

#include <gtest/gtest.h>

#include <filesystem>

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

}  // namespace
}  // namespace trireme::batch

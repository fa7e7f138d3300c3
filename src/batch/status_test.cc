// Status from records that are written by hand: rates, the interval of the end, costs, goals, the bottleneck.
#include "batch/status.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "batch/job_plan.h"
#include "batch/report.h"
#include "batch/state/journal.h"
#include "batch/state/test_directory.h"
#include "batch/state/worker_seat.h"

namespace trireme::batch {
namespace {

constexpr int64_t kSecond = base::kNsPerSecond, kStart = 1000 * kSecond;

/// Ten chunks of 100 rows, or of `rows`; the first `seconds.size()` were done in so many seconds each by one
/// worker.
struct WrittenJob {
  WrittenJob(const std::string& name, uint64_t worker, const std::vector<int64_t>& seconds,
             std::vector<int64_t> rows = {}) {
    rows.resize(10, 100);
    options.output_directory = fresh(name);
    options.output_format = "jsonl";
    options.cost_per_hour = 3600;  // 1 a second
    const JobDirectory directory = directory_of(options, 10);
    std::filesystem::create_directories(directory.workers());
    manifest.job = 5;
    manifest.wall_ns = kStart;
    manifest.identity = base::Json::object();
    manifest.result = manifest.options = base::Json::object();
    manifest.files = {{.path = "in.jsonl"}};
    for (int64_t c = 0, first = 0; c < 10; first += rows[static_cast<size_t>(c++)])
      manifest.chunks.push_back({.span = {.first_row = first, .rows = rows[static_cast<size_t>(c)]}});
    write_manifest(directory.manifest(), manifest);
    Journal journal(directory.journal(), manifest.job, 10);
    journal.transact([&](Transaction& t) {
      int64_t now = kStart;
      t.add({.kind = RecordKind::worker, .worker = worker, .wall_ns = now, .text = "host:1"});
      for (size_t c = 0; c < seconds.size(); ++c) {
        const auto chunk = static_cast<int64_t>(c);
        const auto token = static_cast<uint64_t>(c + 1);
        t.add({.kind = RecordKind::lease, .worker = worker, .token = token, .chunk = chunk, .wall_ns = now});
        now += seconds[c] * kSecond;
        t.add({.kind = RecordKind::done,
               .worker = worker,
               .token = token,
               .chunk = chunk,
               .wall_ns = now,
               .result = {.rows = rows[c] - 1, .errors = 1, .bytes = 1000},
               .effort = {.elapsed_ns = seconds[c] * kSecond,
                          .busy_ns = seconds[c] * kSecond * 2,
                          .instances = 2,
                          .elements = 100,
                          .padded = 50}});
      }
    });
  }

  JobOptions options;
  Manifest manifest;
};

TEST(JobStatus, TellsTheEndByTheRateOfThoseWhoWork) {
  WrittenJob none("status_none", 7, {2, 2, 2, 2});
  base::FakeClock clock(0, kStart + 8 * kSecond);
  const JobStatus idle = status_of(none.options, clock);
  EXPECT_EQ(idle.past.chunks_done, 4);
  EXPECT_EQ(idle.past.rows_done, 400);
  EXPECT_EQ(idle.past.errors, 4);
  EXPECT_TRUE(idle.working.empty());
  EXPECT_LT(idle.left_s, 0) << "nobody works";
  EXPECT_NEAR(idle.cost, 8, 1e-9);
  EXPECT_NEAR(idle.cost_at_end, 20, 1e-9);

  const std::string workers = none.options.state_directory() + "/workers";
  std::filesystem::create_directories(workers);
  const WorkerSeat seat(workers);
  WrittenJob same("status_same", seat.worker(), {2, 2, 2, 2});
  std::filesystem::remove_all(same.options.state_directory() + "/workers");
  std::filesystem::rename(workers, same.options.state_directory() + "/workers");
  const JobStatus steady = status_of(same.options, clock);
  ASSERT_EQ(steady.working.size(), 1U);
  EXPECT_EQ(steady.working[0].process, "host:1");
  EXPECT_NEAR(steady.rows_per_s, 50, 1e-9);
  EXPECT_NEAR(steady.left_s, 12, 1e-9);
  EXPECT_NEAR(steady.least_left_s, 12, 1e-9) << "all chunks were alike";
}

TEST(JobStatus, TheIntervalFollowsTheSpread) {
  WrittenJob job("status_spread", 7, {1, 3, 1, 3});
  const JobPast past = read_past(directory_of(job.options, 10), job.manifest);
  EXPECT_NEAR(past.seconds_per_row, 0.02, 1e-12);
  // Deviation of 1, 3, 1, 3 with n - 1: sqrt(4 / 3); relative to the mean of 2.
  EXPECT_NEAR(past.spread, std::sqrt(4.0 / 3) / 2, 1e-12);
}

TEST(JobStatus, RatesCountRowsAndNotChunks) {
  const std::string workers = fresh("status_rows_workers");
  const WorkerSeat seat(workers);
  // 4 chunks of one row in a second each, then one of 996 rows in 6: 1000 rows in 10 seconds.
  WrittenJob job("status_rows", seat.worker(), {1, 1, 1, 1, 6}, {1, 1, 1, 1, 996});
  const JobPast past = read_past(directory_of(job.options, 10), job.manifest);
  EXPECT_NEAR(past.seconds_per_row, 0.01, 1e-12);
  const std::string report = report_of(job.options, job.manifest, directory_of(job.options, 10));
  EXPECT_NE(report.find("- rate: 100.0 rows/s a worker"), std::string::npos) << report;
  // Of chunks that are longer than those before, the time lies between that by the chunk and that by the row.
  WrittenJob longer("status_longer", seat.worker(), {1, 1, 1, 1}, {1, 1, 1, 1});
  std::filesystem::remove_all(longer.options.state_directory() + "/workers");
  std::filesystem::rename(workers, longer.options.state_directory() + "/workers");
  base::FakeClock clock(0, kStart + 4 * kSecond);
  const JobStatus s = status_of(longer.options, clock);
  EXPECT_NEAR(s.least_left_s, 6, 1e-9);
  EXPECT_NEAR(s.most_left_s, 600, 1e-9);
}

TEST(JobStatus, GoalsSayWhatTheyNeed) {
  WrittenJob job("status_goals", 7, {2, 2, 2, 2});
  base::FakeClock clock(0, kStart + 8 * kSecond);
  job.options.deadline.ns = 12 * kSecond;  // 4 s are left for 12 s of work
  job.options.budget = 25;
  JobStatus s = status_of(job.options, clock);
  ASSERT_EQ(s.goals.size(), 2U);
  EXPECT_NE(s.goals[0].find("needs 3 workers"), std::string::npos) << s.goals[0];
  EXPECT_EQ(workers_for_deadline(job.options, s), 3);
  EXPECT_NE(s.goals[0].find("sbatch --array=0-2 deploy/batch.sbatch"), std::string::npos) << s.goals[0];
  EXPECT_NE(s.goals[1].find("is enough: the job will cost 20.00 of 25.00"), std::string::npos) << s.goals[1];
  job.options.deadline.ns = 9 * kSecond;  // 12 workers for 6 chunks
  job.options.budget = 19;
  s = status_of(job.options, clock);
  EXPECT_NE(s.goals[0].find("cannot be met: 12 workers would be needed"), std::string::npos) << s.goals[0];
  EXPECT_NE(s.goals[1].find("cannot be met"), std::string::npos) << s.goals[1];
  job.options.deadline.ns = 7 * kSecond;
  EXPECT_NE(status_of(job.options, clock).goals[0].find("has passed"), std::string::npos);
}

TEST(JobStatus, TheBottleneckAndWhatHelps) {
  Effort e{
      .elapsed_ns = 100, .read_ns = 10, .blocked_ns = 80, .busy_ns = 190, .instances = 2, .elements = 10};
  EXPECT_EQ(bottleneck_of(e), Bottleneck::model);
  EXPECT_NE(advice_for(Bottleneck::model, e).find("More workers"), std::string::npos);
  e.padded = 5;
  EXPECT_NE(advice_for(Bottleneck::model, e).find("50 %"), std::string::npos);
  e.busy_ns = 50;
  EXPECT_EQ(bottleneck_of(e), Bottleneck::unknown);
  e.waiting_ns = 90;
  EXPECT_EQ(bottleneck_of(e), Bottleneck::front);
  e.read_ns = 95;
  EXPECT_EQ(bottleneck_of(e), Bottleneck::reading);
  e.read_ns = 5, e.write_ns = 50, e.commit_ns = 40;
  EXPECT_EQ(bottleneck_of(e), Bottleneck::writing);
  EXPECT_EQ(bottleneck_of({}), Bottleneck::unknown);
}

TEST(Report, SaysWhereTimeAndMoneyWent) {
  WrittenJob job("report", 7, {2, 2, 2, 2, 2, 2, 2, 2, 2, 2});
  const std::string text = report_of(job.options, job.manifest, directory_of(job.options, 10));
  for (const char* part :
       {"1000 rows in 10 chunks", "rows that failed: 10", "padding: 50.0 %",
        "cost: 20.0000; of a million rows: 20000.0000", "Slowest: the model; the model was busy 100.0 %",
        "| host:1 | 10 | 990 | 50.0 | 100.0 % | without a word |"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(Report, SaysWhereNoRowWasAnswered) {
  WrittenJob job("report_none", 7, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  const JobDirectory directory = directory_of(job.options, 10);
  EXPECT_NE(report_of(job.options, job.manifest, directory).find("no row was answered"), std::string::npos);
  WrittenJob some("report_some", 7, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  const JobDirectory other = directory_of(some.options, 10);
  EXPECT_EQ(report_of(some.options, some.manifest, other).find("no row was answered"), std::string::npos);
}

TEST(Report, SetsThePlanBesideWhatCameOfIt) {
  WrittenJob job("report_plan", 7, {1, 2, 2, 2, 2, 2, 2, 2, 2, 3});  // foretold by the first: 10 s of work
  job.options.deadline.ns = 15 * kSecond;
  job.options.budget = 100;
  const std::string text = report_of(job.options, job.manifest, directory_of(job.options, 10));
  for (const char* part :
       {"foretold by the first 1 chunk |", "| rate of a worker, rows/s | 100.0 | 50.0 | 0.50 |",
        "| time of all workers | 10 s | 20 s | 2.00 |", "| cost of that time | 10.0000 | 20.0000 | 2.00 |",
        "Deadline: 15 s; the job took 20 s: missed.", "Budget: 100.0000; the job cost 20.0000: met."}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

}  // namespace
}  // namespace trireme::batch

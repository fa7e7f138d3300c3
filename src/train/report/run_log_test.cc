// Tests the run's log: lines read back, resumed logs drop steps that run again, the report has the figures.
#include "train/report/run_log.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/files/file.h"
#include "train/files/test_files.h"
#include "train/report/report.h"

namespace trireme::train {
namespace {

StepRecord record(int64_t step) {
  StepRecord r;
  r.step = step;
  r.epoch = 0.01 * static_cast<double>(step);
  r.samples = 64 * step;
  r.targets = 63;
  r.loss = 2.0 / static_cast<double>(step);
  r.lr = 1e-3;
  r.grad_norm = 1.25;
  r.step_ms = 100;
  r.data_wait_ms = 2.5;
  r.forward_ms = 30;
  r.backward_ms = 60;
  r.update_ms = 5;
  r.samples_per_s = 640;
  r.mfu = 0.5;
  return r;
}

struct Fixture {
  base::Log log{base::LogLevel::off};
  base::FakeClock clock{0, 1'700'000'000'000'000'000};
  base::Env env{log, clock};
  LogOptions options;
};

TEST(RunLog, WorkAfterACheckpointIsLost) {
  Fixture f;
  f.options.progress = {0};
  const std::string directory = fresh("log_lost"), path = directory + "/log.jsonl";
  EXPECT_EQ(work_after(path, 3, 0).steps, 0);  // no log exists yet
  {
    RunLog log(f.options, directory, 0, f.env);
    for (int64_t s = 1; s <= 6; ++s) log.step(record(s));
  }
  const base::SystemClock clock;
  const LostWork lost = work_after(path, 4, clock.wall_ns() + 5 * base::kNsPerSecond);
  EXPECT_EQ(lost.steps, 2);
  EXPECT_NEAR(lost.seconds, 0.2, 1e-9);
  EXPECT_GE(lost.down_seconds, 4.9);
  EXPECT_EQ(work_after(path, 6, clock.wall_ns()).steps, 0);
  {
    RunLog log(f.options, directory, 4, f.env);
    log.event("restarted", base::Json::object({{"step", 4}, {"lost_steps", 2}, {"lost_seconds", 0.2}}));
  }
  EXPECT_EQ(read_log(path).restarts.at(0).steps, 2);
  EXPECT_EQ(read_log(path).steps.size(), 4u);
}

TEST(RunLog, LinesReadBackAndResumedLogsAreCut) {
  Fixture f;
  f.options.progress = {0};
  const std::string directory = fresh("log_cut");
  {
    RunLog log(f.options, directory, 0, f.env);
    log.event("start", base::Json::object({{"name", "first"}}));
    for (int64_t s = 1; s <= 6; ++s) log.step(record(s));
    log.eval({.step = 4, .targets = 10, .loss = 1.5, .accuracy = 0.75});
    log.eval({.step = 6, .targets = 10, .loss = 1.25, .accuracy = 0.8});
    log.event("end", base::Json::object({{"reason", "killed"}}));
  }
  base::write_file_atomic(directory + "/log.jsonl",
                          base::read_file(directory + "/log.jsonl") + "{\"event\":\"step\",\"st");
  EXPECT_EQ(read_log(directory + "/log.jsonl").steps.size(), 6u);
  {
    RunLog log(f.options, directory, 4, f.env);
    for (int64_t s = 5; s <= 8; ++s) log.step(record(s));
  }
  const LoggedRun run = read_log(directory + "/log.jsonl");
  ASSERT_EQ(run.steps.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(run.steps[i].step, static_cast<int64_t>(i + 1));
  EXPECT_EQ(run.steps[2].loss, 2.0 / 3);
  EXPECT_EQ(run.steps[2].mfu, 0.5);
  ASSERT_EQ(run.evals.size(), 1u);
  EXPECT_EQ(run.evals[0].accuracy, 0.75);
  EXPECT_EQ(run.start.at("name").as_string(), "first");
  EXPECT_TRUE(run.end.is_null());
}

TEST(RunLog, NonFiniteLossesAreLogged) {
  Fixture f;
  const std::string directory = fresh("log_nan");
  StepRecord r = record(1);
  r.loss = INFINITY;
  r.grad_norm = NAN;
  r.skipped = true;
  RunLog(f.options, directory, 0, f.env).step(r);
  const LoggedRun run = read_log(directory + "/log.jsonl");
  ASSERT_EQ(run.steps.size(), 1u);
  EXPECT_TRUE(std::isinf(run.steps[0].loss));
  EXPECT_TRUE(run.steps[0].skipped);
}

TEST(AppendFile, TellsOnceThatTheDiskIsFull) {
  AppendFile file("/dev/full");  // every write fails
  file.append("line\n");
  EXPECT_EQ(file.error(), "");
  file.flush();
  EXPECT_NE(file.error().find("No space left"), std::string::npos);
  file.append("line\n");
  file.flush();
  EXPECT_EQ(file.error(), "");
}

TEST(RunLog, ProgressLine) {
  StepRecord r = record(120);
  r.loss = 2.4132;
  EXPECT_EQ(progress_text(r, 2000, 130),
            "step 120/2000  epoch 1.20  loss 2.4132  lr 0.001  grad 1.25  640 samples/s  MFU 50.0 %  "
            "data wait 2.5 %  left 2m10s");
  EXPECT_EQ(short_time(59.6), "1m00s");
  EXPECT_EQ(short_time(7500), "2h05m");
  EXPECT_EQ(short_time(3), "3s");
}

TEST(Report, HoldsTheFiguresAndThePlots) {
  Fixture f;
  const std::string directory = fresh("log_report");
  RunLog log(f.options, directory, 0, f.env);
  log.event("start", base::Json::object(
                         {{"name", "demo"},
                          {"mfu_definition", "flop over peak"},
                          {"config", base::Json::object({{"run", base::Json::object({{"seed", 7}})}})}}));
  for (int64_t s = 1; s <= 3000; ++s) log.step(record(s));
  log.eval({.step = 3000, .targets = 10, .loss = 1.25, .accuracy = 0.8, .seconds = 1});
  log.event("end", base::Json::object({{"reason", "done"}, {"seconds", 300}}));
  write_report(directory);
  const std::string page = base::read_file(directory + "/report.md");
  for (const char* part :
       {"# Training report: demo", "| steps | 3000, 0 skipped |", "80.00 %", "| backward | 60.000 |",
        "| ended | done |", "seed: 7", "plots/loss.svg", "flop over peak"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  for (const char* plot : {"loss", "lr", "rate", "step_time"}) {
    const std::string svg = base::read_file(directory + "/plots/" + plot + ".svg");
    EXPECT_TRUE(svg.starts_with("<svg xmlns=")) << plot;
    EXPECT_LT(svg.size(), 80'000u) << plot;  // points were thinned out
  }
}

}  // namespace
}  // namespace trireme::train

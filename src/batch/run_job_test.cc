// Whole jobs with a small model: every row once and in order, whatever fails, stops, is killed or comes
// twice.
#include "batch/run_job.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <set>

#include "base/text/json.h"
#include "batch/status.h"
#include "batch/test_job.h"
#include "batch/verify.h"

namespace trireme::batch {
namespace {

std::vector<base::Json> lines_of(const std::string& text) {
  std::vector<base::Json> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(base::parse_json(text.substr(at, end - at)));
    at = end + 1;
  }
  return lines;
}

/// Every row of all parts, in their order.
std::vector<base::Json> rows_of(const std::map<std::string, std::string>& output) {
  std::vector<base::Json> rows;
  for (const auto& [name, text] : output) {
    if (!name.starts_with("part-")) continue;
    for (base::Json& line : lines_of(text)) rows.push_back(std::move(line));
  }
  return rows;
}

void expect_rows(const std::map<std::string, std::string>& output, const std::set<int64_t>& without = {}) {
  std::vector<base::Json> expected;
  for (int64_t x = 0; x < 105; ++x) {
    if (without.contains(x)) continue;
    const std::string name = "row " + std::to_string(x);
    expected.push_back(base::Json::object({{"id", name}, {"y", 3 * x + 1}, {"said", name}}));
  }
  const std::vector<base::Json> rows = rows_of(output);
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].dump(), expected[i].dump());
}

/// What an undisturbed run writes.
std::map<std::string, std::string> undisturbed(const std::string& name, ArithmeticModel::Options model = {}) {
  const JobOptions options = small_job(fresh(name));
  EXPECT_TRUE(run(options, std::move(model)).all_done);
  return output_of(options.output_directory);
}

TEST(RunJob, GivesEveryRowOnceAndInOrder) {
  const JobOptions options = small_job(fresh("order"));
  EXPECT_TRUE(run(options).all_done);
  const auto output = output_of(options.output_directory);
  EXPECT_EQ(output.size(), 6U) << "three chunks a file";
  expect_rows(output);
  EXPECT_TRUE(verify_job(options).is_whole());
  // Once more: there is nothing left to do, and nothing is done.
  EXPECT_TRUE(run(options, {.dies_after = 0}).all_done);
  EXPECT_EQ(output_of(options.output_directory), output);
  EXPECT_NE(base::read_file(options.output_directory + "/_job/report.md").find("105 rows in 6 chunks"),
            std::string::npos);
}

TEST(RunJob, DirectoriesGiveColumns) {
  const std::string directory = fresh("partitions");
  JobOptions options = small_job(directory);
  for (const char* name : {"in/year=2024/kind=a%2Fb", "in/year=2025/kind=7"})
    std::filesystem::create_directories(directory + "/" + name);
  write_input(directory + "/in/year=2024/kind=a%2Fb/x.jsonl", 0, 30);
  write_input(directory + "/in/year=2025/kind=7/x.jsonl", 30, 10);
  options.input_files = {directory + "/in"};
  options.input_keep = {"id", "year", "kind"};
  EXPECT_TRUE(run(options).all_done);
  const std::vector<base::Json> rows = rows_of(output_of(options.output_directory));
  ASSERT_EQ(rows.size(), 40U);
  EXPECT_EQ(rows[0].dump(), R"({"id":"row 0","year":2024,"kind":"a/b","y":1,"said":"row 0"})");
  EXPECT_EQ(rows[39].dump(), R"({"id":"row 39","year":2025,"kind":"7","y":118,"said":"row 39"})");
  const std::string report = base::read_file(options.output_directory + "/_job/report.md");
  EXPECT_NE(report.find("columns that directories name: year, kind"), std::string::npos) << report;
  // A column may be what the model reads, and a file outside of the directories lacks it.
  write_input(directory + "/in/x.jsonl", 0, 3);
  options.output_directory = directory + "/out2";
  EXPECT_NE(error_of([&] { run(options); }).find("no column 'year'"), std::string::npos);
  options.input_partitions = false;
  options.input_keep = {"id"};
  EXPECT_TRUE(run(options).all_done);
}

TEST(RunJob, BytesDoNotDependOnPiecesThreadsOrWorkers) {
  const auto whole = undisturbed("pieces_whole");
  for (const ArithmeticModel::Options& model : {ArithmeticModel::Options{.threads = 1, .piece_rows = 1},
                                                {.threads = 4, .piece_rows = 3},
                                                {.piece_rows = 1000}}) {
    EXPECT_EQ(undisturbed("pieces", model), whole);
  }
  const JobOptions options = small_job(fresh("pieces_workers"));
  std::vector<std::thread> workers;
  for (int w = 0; w < 3; ++w) workers.emplace_back([&] { EXPECT_TRUE(run(options).all_done); });
  for (std::thread& w : workers) w.join();
  EXPECT_EQ(output_of(options.output_directory), whole);
  EXPECT_EQ(status_of(options, base::SystemClock()).past.workers.size(), 3U);
}

TEST(RunJob, RowsThatFailAreTold) {
  const JobOptions options = small_job(fresh("failing"));
  EXPECT_TRUE(run(options, {.passing_failures = 3, .fails = true}).all_done);
  auto output = output_of(options.output_directory);
  expect_rows(output, {13});
  ASSERT_EQ(output.count("errors/part-00000.jsonl"), 1U);
  EXPECT_EQ(output.size(), 7U);
  const base::Json line = lines_of(output["errors/part-00000.jsonl"]).at(0);
  EXPECT_TRUE(line.at("file").as_string().ends_with("in0.jsonl"));
  EXPECT_EQ(line.at("row").as_int(), 13);
  EXPECT_EQ(line.at("code").as_string(), "invalid_argument");
  EXPECT_EQ(line.at("error").as_string(), "13 brings bad luck");
  EXPECT_EQ(line.at("kept").at("id").as_string(), "row 13");
  const JobStatus status = status_of(options, base::SystemClock());
  EXPECT_EQ(status.past.errors, 1);
  EXPECT_EQ(status.past.effort.retried, 3) << "row 17, three times";
}

TEST(RunJob, RowsThatGoOnFailingAreTold) {
  const JobOptions options = small_job(fresh("failing_on"));
  EXPECT_TRUE(run(options, {.passing_failures = 4}).all_done);
  auto output = output_of(options.output_directory);
  expect_rows(output, {17});
  EXPECT_EQ(lines_of(output["errors/part-00000.jsonl"]).at(0).at("code").as_string(), "unavailable");
}

TEST(RunJob, RowsThatCannotBeReadAreTold) {
  const std::string directory = fresh("unreadable");
  const JobOptions options = small_job(directory);
  std::string text = base::read_file(directory + "/in0.jsonl");
  const size_t at = text.find(R"({"id": "row 21")");
  text.replace(at, 3, "oh ");
  base::write_file_atomic(directory + "/in0.jsonl", text);
  EXPECT_TRUE(run(options).all_done);
  auto output = output_of(options.output_directory);
  expect_rows(output, {21});
  const base::Json line = lines_of(output["errors/part-00001.jsonl"]).at(0);
  EXPECT_EQ(line.at("row").as_int(), 21);
  EXPECT_TRUE(verify_job(options).is_whole());
}

TEST(RunJob, TooManyFailedRowsEndTheJobAndMoreMayBeAllowed) {
  JobOptions options = small_job(fresh("max_errors"));
  options.max_errors = 0;
  const std::string error = error_of([&] { run(options, {.fails = true}); });
  EXPECT_NE(error.find("more than max_errors = 0"), std::string::npos) << error;
  EXPECT_NE(error.find("row 13: 13 brings bad luck"), std::string::npos) << error;
  options.max_errors = 1;
  EXPECT_TRUE(run(options, {.fails = true}).all_done);
  EXPECT_EQ(output_of(options.output_directory).size(), 7U);
}

TEST(RunJob, FailedRowsOfOtherWorkersCount) {
  const std::string directory = fresh("max_errors_of_all");
  JobOptions options = small_job(directory);
  write_input(directory + "/in1.jsonl", 60, 60);  // rows 13 and 113 fail, in the first and the last chunk
  options.max_errors = 1;
  const auto errors = [&] { return status_of(options, base::SystemClock()).past.errors; };
  WorkerHooks hooks;
  std::atomic<bool> has_sealed{false};
  hooks.at = [&](std::string_view at) {
    if (at != "sealed" || has_sealed.exchange(true)) return;
    // While this worker is about to commit the first chunk, another commits the last one.
    WorkerHooks others;
    others.stop_reason = [&] { return std::string(errors() > 0 ? "enough" : ""); };
    EXPECT_FALSE(run(options, {.fails = true}, std::move(others)).all_done);
  };
  const std::string error = error_of([&] { run(options, {.fails = true}, std::move(hooks)); });
  EXPECT_NE(error.find("2 rows failed, more than max_errors = 1; one of them: "), std::string::npos) << error;
  EXPECT_NE(error.find("row 13: 13 brings bad luck"), std::string::npos) << error;
  EXPECT_EQ(errors(), 1);
  options.max_errors = 2;
  EXPECT_TRUE(run(options, {.fails = true}).all_done);
}

TEST(RunJob, NumbersThatJsonHasNotFailInOutputsAndAreNullInKeptColumns) {
  const std::string directory = fresh("not_finite");
  JobOptions options = small_job(directory);
  std::string text = "id,x\n";
  for (int x = 0; x < 30; ++x) text += base::concat(x == 3 || x == 13 ? "NaN" : "0.5", ",", x, "\n");
  base::write_file_atomic(directory + "/in.csv", text);
  options.input_files = {directory + "/in.csv"};
  const ArithmeticModel::Options model{.fails = true, .divides = true};
  EXPECT_TRUE(run(options, model).all_done);
  auto output = output_of(options.output_directory);
  const std::vector<base::Json> rows = rows_of(output);
  ASSERT_EQ(rows.size(), 28U);
  EXPECT_EQ(rows[3].dump(), R"({"id":null,"y":10,"said":"row 3","inverse":-0.0625})");
  const std::vector<base::Json> errors = lines_of(output["errors/part-00000.jsonl"]);
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0].at("row").as_int(), 13);
  EXPECT_TRUE(errors[0].at("kept").at("id").is_null());
  EXPECT_EQ(errors[1].at("row").as_int(), 19);
  EXPECT_EQ(errors[1].at("code").as_string(), "unsupported");
  EXPECT_NE(errors[1].at("error").as_string().find("'inverse' holds inf"), std::string::npos);
  EXPECT_TRUE(verify_job(options).is_whole());
  // CSV has words for them.
  options.output_format = "csv";
  options.output_directory = directory + "/csv";
  EXPECT_TRUE(run(options, model).all_done);
  output = output_of(options.output_directory);
  EXPECT_NE(output["part-00000.csv"].find("\nNaN,10,row 3,-0.0625\n"), std::string::npos);
  EXPECT_NE(output["part-00000.csv"].find("\n0.5,58,row 19,Inf\n"), std::string::npos);
  EXPECT_EQ(lines_of(output["errors/part-00000.jsonl"]).size(), 1U);
}

TEST(RunJob, FilesWithoutRowsArePassedOver) {
  const std::string directory = fresh("empty_files");
  JobOptions options = small_job(directory);
  for (const char* name : {"/in0.jsonl", "/in2.jsonl"}) base::write_file_atomic(directory + name, "");
  EXPECT_TRUE(run(options).all_done);
  EXPECT_EQ(rows_of(output_of(options.output_directory)).size(), 45U);
  EXPECT_TRUE(run(options).all_done);
  options.input_files = {directory + "/in*.csv"};
  base::write_file_atomic(directory + "/in0.csv", "");
  options.output_directory = directory + "/nothing";
  EXPECT_TRUE(run(options).all_done);
  EXPECT_TRUE(output_of(options.output_directory).empty());
  base::write_file_atomic(directory + "/in1.csv", "id,x\n");
  base::write_file_atomic(directory + "/in2.csv", "id,x\n0.5,7\n");
  options.output_directory = directory + "/cells";
  EXPECT_TRUE(run(options).all_done);
  EXPECT_EQ(rows_of(output_of(options.output_directory)).at(0).dump(), R"({"id":0.5,"y":22,"said":"row 7"})");
  base::write_file_atomic(directory + "/in3.csv", "id\n0.5\n");
  options.output_directory = directory + "/lacks";
  EXPECT_NE(error_of([&] { run(options); }).find("there is no column 'x'"), std::string::npos);
}

TEST(RunJob, InputThatChangesWhileTheJobRunsEndsIt) {
  const std::string directory = fresh("changes");
  const JobOptions options = small_job(directory);
  WorkerHooks hooks;
  std::atomic<bool> has_changed{false};
  hooks.at = [&](std::string_view at) {
    // A row behind all that are read: no chunk's bytes change.
    if (at == "taken" && !has_changed.exchange(true)) write_input(directory + "/in1.jsonl", 60, 46);
  };
  const std::string error = error_of([&] { run(options, {}, std::move(hooks)); });
  EXPECT_NE(error.find("in1.jsonl', rows from 0: the file has changed"), std::string::npos) << error;
}

TEST(RunJob, AModelThatCanAnswerNothingEndsTheWorker) {
  const JobOptions options = small_job(fresh("model_dies"));
  EXPECT_EQ(error_of([&] { run(options, {.dies_after = 9}); }), "model: the device is gone");
  EXPECT_TRUE(run(options).all_done);
  EXPECT_EQ(output_of(options.output_directory), undisturbed("model_lives"));
}

TEST(RunJob, KilledAtEveryPlaceItEndsWithTheSameBytes) {
  const ArithmeticModel::Options model{.passing_failures = 1, .fails = true};
  const auto whole = undisturbed("killed_whole", model);
  const JobOptions options = small_job(fresh("killed"));
  // A life of n places, then one of n + 1: each begins with what the one before has left.
  std::map<std::string, int> places;
  int kills = 0;
  for (int64_t lives = 0;; ++lives) {
    ASSERT_LT(lives, 1000);
    const int64_t dies_at = lives % 40;
    const int status = in_process([&] {
      std::atomic<int64_t> calls{0};
      WorkerHooks hooks;
      hooks.at = [&](std::string_view) {
        if (calls++ == dies_at) ::_exit(9);
      };
      if (!run(options, model, std::move(hooks)).all_done) ::_exit(8);
    });
    if (WEXITSTATUS(status) == 0) break;
    ASSERT_EQ(WEXITSTATUS(status), 9) << "life " << lives;
    ++kills;
  }
  EXPECT_GT(kills, 20);
  EXPECT_EQ(output_of(options.output_directory), whole);
  EXPECT_TRUE(verify_job(options).is_whole());
  EXPECT_TRUE(std::filesystem::is_empty(options.output_directory + "/_job/tmp"));
  EXPECT_TRUE(std::filesystem::is_empty(options.output_directory + "/_job/workers"));
}

TEST(RunJob, KilledOnceAtEachPlaceItEndsWithTheSameBytes) {
  const auto whole = undisturbed("killed_once_whole");
  for (const std::string place : {"taken", "read", "written", "sealed", "published", "committed"}) {
    for (const int nth : {0, 2}) {
      const JobOptions options = small_job(fresh("killed_once"));
      const int status = in_process([&] {
        std::atomic<int> calls{0};
        WorkerHooks hooks;
        hooks.at = [&](std::string_view at) {
          if (at == place && calls++ == nth) ::_exit(9);
        };
        run(options, {}, std::move(hooks));
      });
      ASSERT_EQ(WEXITSTATUS(status), 9) << place;
      if (place == "published") {
        EXPECT_FALSE(verify_job(options).findings.empty()) << "a part without a record went unseen";
      }
      EXPECT_TRUE(run(options).all_done);
      EXPECT_EQ(output_of(options.output_directory), whole) << place << " " << nth;
    }
  }
}

TEST(RunJob, WhatHasANameButNoRecordIsDroppedAtTheNextStart) {
  const JobOptions options = small_job(fresh("unrecorded"));
  const int status = in_process([&] {
    WorkerHooks hooks;
    hooks.at = [&](std::string_view at) {
      if (at == "published") ::_exit(9);
    };
    run(options, {.fails = true}, std::move(hooks));
  });
  ASSERT_EQ(WEXITSTATUS(status), 9);
  EXPECT_EQ(output_of(options.output_directory).size(), 2U) << "a part and its failed row";
  WorkerHooks hooks;
  std::atomic<bool> has_taken{false};
  hooks.at = [&](std::string_view at) { has_taken = has_taken || at == "taken"; };
  hooks.stop_reason = [&] { return std::string(has_taken ? "at once" : ""); };
  EXPECT_FALSE(run(options, {.threads = 0, .piece_rows = 1000}, std::move(hooks)).all_done);
  EXPECT_TRUE(output_of(options.output_directory).empty());
}

TEST(RunJob, AnErrorFileOfAnEarlierAttemptGoesWithTheCommit) {
  const JobOptions options = small_job(fresh("stale_errors"));
  const std::string stale = options.output_directory + "/errors/part-00000.jsonl";
  WorkerHooks hooks;
  std::atomic<bool> has_written{false};
  hooks.at = [&](std::string_view at) {
    if (at != "sealed" || has_written.exchange(true)) return;
    std::filesystem::create_directories(options.output_directory + "/errors");
    overwrite(stale, "a row that failed for a worker that was killed before its record\n");
  };
  EXPECT_TRUE(run(options, {}, std::move(hooks)).all_done);
  EXPECT_FALSE(base::file_exists(stale));
}

TEST(RunJob, AWorkerThatIsStoppedPastItsLeaseCannotCommit) {
  JobOptions options = small_job(fresh("stopped"));
  options.lease.ns = base::kNsPerSecond;
  const auto whole = undisturbed("stopped_whole");
  const pid_t child = ::fork();
  if (child == 0) {
    WorkerHooks hooks;
    std::atomic<bool> has_stopped{false};
    hooks.at = [&](std::string_view at) {
      if (at == "sealed" && !has_stopped.exchange(true)) ::raise(SIGSTOP);
    };
    ::_exit(run(options, {}, std::move(hooks)).all_done ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_TRUE(run(options).all_done) << "the others wait for a worker that is stopped";
  EXPECT_EQ(output_of(options.output_directory), whole);
  const std::string journal = base::read_file(options.output_directory + "/_job/journal");
  ::kill(child, SIGCONT);
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "it goes on, and finds that all is done";
  EXPECT_EQ(output_of(options.output_directory), whole);
  const Verified verified = verify_job(options);
  EXPECT_TRUE(verified.is_whole());
  EXPECT_EQ(verified.rows, 105);
  EXPECT_TRUE(base::read_file(options.output_directory + "/_job/journal").starts_with(journal));
  EXPECT_EQ(status_of(options, base::SystemClock()).past.chunks_done, 6) << "a chunk was committed twice";
}

TEST(RunJob, AWorkerThatIsToldToStopGivesBack) {
  const auto whole = undisturbed("told_whole");
  JobOptions options = small_job(fresh("told"));
  WorkerHooks hooks;
  std::atomic<int> reads{0};
  hooks.at = [&](std::string_view at) { reads += at == "read"; };
  hooks.stop_reason = [&] { return std::string(reads > 6 ? "enough" : ""); };
  // One thread that answers slowly enough for the worker to look at its signals meanwhile.
  const WorkerEnd end = run(options, {.threads = 1, .piece_rows = 2}, [&] {
    WorkerHooks slow = hooks;
    slow.at = [&](std::string_view at) {
      reads += at == "read";
      if (at == "written") std::this_thread::sleep_for(std::chrono::milliseconds(30));
    };
    return slow;
  }());
  EXPECT_FALSE(end.all_done);
  EXPECT_EQ(end.reason, "enough");
  const JobStatus status = status_of(options, base::SystemClock());
  EXPECT_GT(status.past.given_back, 0);
  EXPECT_TRUE(status.working.empty());
  EXPECT_TRUE(std::filesystem::is_empty(options.output_directory + "/_job/tmp"));
  EXPECT_TRUE(run(options).all_done);
  EXPECT_EQ(output_of(options.output_directory), whole);
}

TEST(RunJob, AWorkerWhoseGraceIsOverDoesNotWaitForItsModel) {
  const JobOptions options = small_job(fresh("late"));
  const int status = in_process([&] {
    ::alarm(30);  // kills a worker that waits
    WorkerHooks hooks;
    std::atomic<int> reads{0};
    hooks.at = [&](std::string_view at) { reads += at == "read"; };
    hooks.stop_reason = [&] { return std::string(reads > 6 ? "SIGTERM" : ""); };
    // Nobody answers, and the seventh piece waits for room.
    const WorkerEnd end = run(options, {.threads = 0, .piece_rows = 1}, std::move(hooks));
    ::_exit(end.all_done || end.reason != "SIGTERM" ? 1 : 0);
  });
  EXPECT_EQ(status, 0);
}

TEST(RunJob, WithTimeLeftAStoppedWorkerFinishesItsChunk) {
  const std::string directory = fresh("grace");
  JobOptions options = small_job(directory);
  write_input(directory + "/in1.jsonl", 60, 600);
  options.grace.ns = 20 * base::kNsPerSecond;
  WorkerHooks hooks;
  std::atomic<int> written{0};
  hooks.at = [&](std::string_view at) {
    if (at != "written") return;
    ++written;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  hooks.stop_reason = [&] { return std::string(written > 3 ? "soon" : ""); };
  EXPECT_FALSE(run(options, {.threads = 1, .piece_rows = 2}, hooks).all_done);
  EXPECT_GT(status_of(options, base::SystemClock()).past.chunks_done, 0);
}

TEST(RunJob, AFullDiskIsWaitedForAndLeavesNothingHalf) {
  const auto whole = undisturbed("full_whole");
  const JobOptions options = small_job(fresh("full"));
  in_process([&] {  // plans the job, and no more
    WorkerHooks hooks;
    hooks.at = [](std::string_view) { ::_exit(9); };
    run(options, {}, std::move(hooks));
  });
  const int status = in_process([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{.rlim_cur = 1200, .rlim_max = 1200};  // the journal and the parts soon reach it
    ::setrlimit(RLIMIT_FSIZE, &small);
    const WorkerEnd end = run(options);
    ::_exit(end.all_done ? 1 : end.reason.find("File too large") == std::string::npos ? 2 : 0);
  });
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (const auto& [name, text] : output_of(options.output_directory))
    EXPECT_EQ(whole.at(name), text) << name;
  EXPECT_TRUE(run(options).all_done);
  EXPECT_EQ(output_of(options.output_directory), whole);
}

TEST(RunJob, ADiskThatIsFullFromTheStartIsAReasonToStartAgain) {
  const JobOptions options = small_job(fresh("full_start"));
  const auto without_room = [&] {
    return in_process([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit none{.rlim_cur = 0, .rlim_max = 0};
      ::setrlimit(RLIMIT_FSIZE, &none);
      const WorkerEnd end = run(options);
      ::_exit(end.all_done ? 1 : end.reason.find("File too large") == std::string::npos ? 2 : 0);
    });
  };
  EXPECT_EQ(WEXITSTATUS(without_room()), 0) << "no room for the manifest";
  in_process([&] {  // plans the job, and no more
    WorkerHooks hooks;
    hooks.at = [](std::string_view) { ::_exit(9); };
    run(options, {}, std::move(hooks));
  });
  EXPECT_EQ(WEXITSTATUS(without_room()), 0) << "no room for the worker's file";
  EXPECT_TRUE(run(options).all_done);
}

TEST(RunJob, OtherOptionsModelsAndInputsAreRefused) {
  const std::string directory = fresh("refused");
  const JobOptions options = small_job(directory);
  EXPECT_TRUE(run(options).all_done);
  const auto whole = output_of(options.output_directory);
  JobOptions other = options;
  other.chunk_rows = 30;
  std::string error = error_of([&] { run(other); });
  EXPECT_NE(error.find("other options: chunk_rows: 20 then, 30 now"), std::string::npos) << error;
  other = options;
  other.retries = 9;
  other.lease.ns *= 2;
  EXPECT_TRUE(run(other).all_done) << "what changes no byte may differ";
  error = error_of([&] { run(options, {.version = "2"}); });
  EXPECT_NE(error.find("another model: version: 1 then, 2 now"), std::string::npos) << error;
  write_input(directory + "/in1.jsonl", 61, 45);
  error = error_of([&] { run(options); });
  EXPECT_NE(error.find("in1.jsonl' has changed"), std::string::npos) << error;
  write_input(directory + "/in1.jsonl", 60, 45);
  EXPECT_TRUE(run(options).all_done);
  write_input(directory + "/in2.jsonl", 60, 45);
  error = error_of([&] { run(options); });
  EXPECT_NE(error.find("in2.jsonl' is new"), std::string::npos) << error;
  std::filesystem::remove(directory + "/in2.jsonl");
  std::filesystem::rename(directory + "/in1.jsonl", directory + "/in9.jsonl");
  error = error_of([&] { run(options); });
  EXPECT_NE(error.find("in1.jsonl' is gone"), std::string::npos) << error;
  EXPECT_EQ(output_of(options.output_directory), whole);
}

TEST(RunJob, WhatCannotWorkIsRefusedBeforeItBegins) {
  const std::string directory = fresh("wrong");
  const JobOptions options = small_job(directory);
  JobOptions other = options;
  other.input_keep = {"name"};
  EXPECT_NE(error_of([&] { run(other); }).find("in0.jsonl': there is no column 'name'; there are id, x"),
            std::string::npos);
  other = options;
  other.input_keep = {"x", "id"};
  other.output_columns = {"y=x"};
  EXPECT_NE(error_of([&] { run(other); }).find("has the name of a column that is kept"), std::string::npos);
  other.output_columns = {"z=x"};
  EXPECT_NE(error_of([&] { run(other); }).find("has no output 'z'; it has y, said"), std::string::npos);
  other = options;
  other.output_directory = directory;
  EXPECT_NE(error_of([&] { run(other); }).find("lies among the input"), std::string::npos);
  std::filesystem::create_directories(options.output_directory);
  base::write_file_atomic(options.output_directory + "/part-00000.jsonl", "somebody else's\n");
  EXPECT_NE(error_of([&] { run(options); }).find("but no job that wrote it"), std::string::npos);
}

TEST(VerifyJob, FindsWhatWasChanged) {
  const JobOptions options = small_job(fresh("verify"));
  EXPECT_TRUE(run(options).all_done);
  const std::string part = options.output_directory + "/part-00002.jsonl";
  const std::string text = base::read_file(part);
  std::string wrong = text;
  wrong[10] ^= 1;
  base::write_file_atomic(part, wrong);
  EXPECT_NE(verify_job(options).findings.at(0).find("has other bytes"), std::string::npos);
  base::write_file_atomic(part, text + "\n");
  EXPECT_NE(verify_job(options).findings.at(0).find("bytes; "), std::string::npos);
  std::filesystem::remove(part);
  EXPECT_NE(verify_job(options).findings.at(0).find("part-00002"), std::string::npos);
  base::write_file_atomic(part, text);
  EXPECT_TRUE(verify_job(options).is_whole());
  base::write_file_atomic(options.output_directory + "/part-00777.jsonl", "");
  EXPECT_NE(verify_job(options).findings.at(0).find("is no part of this job"), std::string::npos);
}

}  // namespace
}  // namespace trireme::batch

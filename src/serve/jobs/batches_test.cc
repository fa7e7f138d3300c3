// Batches without a model: whom their lines may ask, how they end, and what disks and killed servers do to
// them.
#include "serve/jobs/batches.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/files/file.h"
#include "batch/state/test_directory.h"
#include "serve/core/kserve_core.h"
#include "serve/jobs/openai_rows.h"
#include "serve/seeing/metrics.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;

class BatchesTest : public testing::Test {
 protected:
  BatchesTest() { core_.set_state(ServerState::serving); }
  ~BatchesTest() override { fs::remove_all(root_); }

  Batches open(base::Clock& clock) { return Batches({.directory = directory_}, files_, api_, {log_, clock}); }

  /// A batch whose lines ask for embeddings of these models, none of which there is.
  std::string create(Batches& batches, const std::vector<std::string>& models,
                     std::optional<std::set<std::string>> allowed = std::nullopt) {
    std::string lines;
    for (const std::string& model : models)
      lines += R"({"custom_id":")" + model + R"(","method":"POST","url":"/v1/embeddings","body":{"model":")" +
               model + R"(","input":"a"}})" + "\n";
    const std::string file = files_.add("asks.jsonl", "batch", "", lines, 1).id;
    return batches
        .create(
            {.endpoint = "/v1/embeddings", .input_file = file, .window = "1h", .models = std::move(allowed)})
        .id;
  }

  static BatchRecord wait(const Batches& batches, const std::string& id) {
    while (!batches.find(id, "").is_over()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return batches.find(id, "");
  }

  std::string record_of(const std::string& id) const { return directory_ + "/" + id + ".json"; }

  const std::string root_ = batch::fresh("batches"), directory_ = root_ + "/batches";
  base::Log log_{base::LogLevel::off};
  base::SystemClock clock_;
  base::FakeClock stopped_{0, 1000 * base::kNsPerSecond};
  ServeOptions options_;
  MetricRegistry metrics_;
  Repository repository_{options_, {log_, clock_}, metrics_};
  KserveCore core_{repository_, options_, {log_, clock_}};
  OpenAiApi api_{core_, 0, {}};
  FileStore files_{root_ + "/files", directory_, 100'000};
};

TEST_F(BatchesTest, LinesAskTheModelsOfTheirMakerOnly) {
  std::string id;
  {
    Batches first = open(clock_);  // a server that ends before it begins
    id = create(first, {"small", "large"}, std::set<std::string>{"small"});
  }
  Batches batches = open(clock_);
  batches.start();
  const BatchRecord batch = wait(batches, id);
  EXPECT_EQ(batch.status, BatchStatus::completed) << batch.failure;
  EXPECT_EQ(batch.failed, 2);
  const std::string errors = base::read_file(files_.path_of(batch.error_file));
  EXPECT_NE(errors.find("unknown model: 'small'"), std::string::npos) << errors;
  EXPECT_NE(errors.find("The model `large` does not exist"), std::string::npos) << errors;
}

TEST_F(BatchesTest, OneThatHasNotBegunEndsAtOnce) {
  Batches batches = open(stopped_);
  const std::string left = create(batches, {"a"}), late = create(batches, {"b"});
  const BatchRecord cancelled = batches.cancel(left, "");
  EXPECT_EQ(cancelled.status, BatchStatus::cancelled);
  EXPECT_EQ(cancelled.ended_s, 1000);
  EXPECT_EQ(batches.find(late, "").status, BatchStatus::validating);
  stopped_.advance(3600 * base::kNsPerSecond);
  EXPECT_EQ(batches.find(late, "").status, BatchStatus::expired);
  for (const BatchRecord& b : batches.list(""))
    EXPECT_EQ(b.status, b.id == late ? BatchStatus::expired : BatchStatus::cancelled);
  EXPECT_THROW(batches.cancel(late, ""), base::Error);
  batches.start();
  while (base::read_file(record_of(late)).find("\"expired\"") == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST_F(BatchesTest, ChangesNothingThatIsNotWritten) {
  Batches batches = open(stopped_);
  const std::string id = create(batches, {"a"});
  fs::remove(record_of(id));
  fs::create_directories(record_of(id) + "/in_the_way");
  EXPECT_THROW(batches.cancel(id, ""), base::Error);
  EXPECT_EQ(batches.find(id, "").status, BatchStatus::validating);
  fs::remove_all(record_of(id));
  EXPECT_EQ(batches.cancel(id, "").status, BatchStatus::cancelled);
}

TEST_F(BatchesTest, WhatIsOverLeavesNothingBehind) {
  std::string over, waits;
  const std::string forgotten = new_id("batch_");
  {
    Batches batches = open(stopped_);
    over = create(batches, {"a"});
    waits = create(batches, {"b"});
    batches.cancel(over, "");
  }
  for (const std::string& id : {over, waits, forgotten}) {
    fs::create_directories(directory_ + "/" + id + "/errors");
    batch::overwrite(directory_ + "/" + id + "/errors/part-00000.jsonl", "line");
  }
  batch::overwrite(record_of(over) + ".tmp.12.0", "{");
  const Batches batches = open(stopped_);
  EXPECT_FALSE(fs::exists(directory_ + "/" + over));
  EXPECT_FALSE(fs::exists(directory_ + "/" + forgotten));
  EXPECT_FALSE(fs::exists(record_of(over) + ".tmp.12.0"));
  EXPECT_TRUE(fs::exists(directory_ + "/" + waits));
  EXPECT_EQ(batches.list("").size(), 2u);
}

TEST_F(BatchesTest, EndsWhereTheFilesAreFull) {
  Batches batches = open(clock_);
  const std::string id = create(batches, {"a"});
  batch::overwrite(root_ + "/files/" + new_id(kFileKind), std::string(100'000, 'x'));
  batches.start();
  const BatchRecord batch = wait(batches, id);
  EXPECT_EQ(batch.status, BatchStatus::failed);
  EXPECT_NE(batch.failure.find("--files-limit"), std::string::npos) << batch.failure;
}

TEST_F(BatchesTest, LinesThatAreGivenUpAreAnsweredWithoutBeingAsked) {
  data::Rows lines{.count = 3};
  for (const auto& [name, text] : {std::pair{"custom_id", "a"},
                                   {"method", "POST"},
                                   {"url", "/v1/embeddings"},
                                   {"body", R"({"model":"a","input":"a"})"}})
    lines.columns.push_back({.field = {.name = name, .kind = data::FieldKind::text},
                             .strings = std::vector<std::string>(3, text)});
  const auto piece = std::make_shared<const data::Rows>(lines);
  OpenAiRows rows({.api = api_, .window_rows = 1});
  const auto codes_of = [&] {
    std::promise<batch::PieceAnswer> answered;
    rows.submit(piece, [&](batch::PieceAnswer&& answer) { answered.set_value(std::move(answer)); });
    std::set<base::ErrorCode> codes;
    for (const auto& error : answered.get_future().get().errors)
      if (error) codes.insert(error->code());
    return codes;
  };
  EXPECT_EQ(codes_of(), std::set{base::ErrorCode::not_found}) << "there is no such model";
  rows.give_up();
  EXPECT_EQ(codes_of(), std::set{base::ErrorCode::unavailable});
}

/// A server that is killed between the last files and the last record writes the same files again.
TEST_F(BatchesTest, FilesAreNamedBeforeTheyCome) {
  std::string id, errors;
  {
    Batches batches = open(clock_);
    id = create(batches, {"a"});
    batches.start();
    errors = wait(batches, id).error_file;
  }
  ASSERT_FALSE(errors.empty());
  base::Json record = base::parse_json(base::read_file(record_of(id)));
  record.set("status", "finalizing");
  record.set("ended_at", 0);
  base::write_file_atomic(record_of(id), record.dump());
  Batches batches = open(clock_);
  EXPECT_TRUE(batches.find(id, "").json().at("error_file_id").is_null()) << "it may not be there";
  batches.start();
  EXPECT_EQ(wait(batches, id).error_file, errors);
  EXPECT_EQ(files_.list("").size(), 2u);
}

}  // namespace
}  // namespace trireme::serve

// A worker over a store that fails now and then, as buckets do: uploads appear whole under the journal's
// lock.
#include "batch/worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "batch/job_plan.h"
#include "batch/run_job.h"
#include "batch/test_job.h"

namespace trireme::batch {
namespace {

/// A directory that behaves like a bucket: every `period`-th call for a file fails, and a file that is not
/// committed leaves nothing. Counts what was committed.
class FlakyBucket : public data::Store {
 public:
  FlakyBucket(const std::string& directory, int period)
      : under_(data::store_of(directory)), period_(period) {}

  std::shared_ptr<const data::StoreFile> open(const std::string& path) const override {
    return under_->open(path);
  }
  std::unique_ptr<data::StoreWriter> create(const std::string& path) const override {
    may_fail();
    return std::make_unique<Upload>(*this, path);
  }
  std::vector<data::StoreEntry> list(const std::string& directory) const override {
    return under_->list(directory);
  }
  bool exists(const std::string& path) const override { return under_->exists(path); }
  void remove(const std::string& path) const override { under_->remove(path); }
  bool is_directory(const std::string& path) const override { return under_->is_directory(path); }
  bool is_local() const override { return false; }

  int failures() const { return failures_; }
  const std::multiset<std::string>& committed() const { return committed_; }

 private:
  class Upload : public data::StoreWriter {
   public:
    Upload(const FlakyBucket& bucket, std::string path) : bucket_(bucket), path_(std::move(path)) {}
    void write(std::string_view bytes) override {
      bucket_.may_fail();
      text_ += bytes;
    }
    int64_t written_bytes() const override { return static_cast<int64_t>(text_.size()); }
    void commit() override {
      bucket_.may_fail();
      const std::unique_ptr<data::StoreWriter> file = bucket_.under_->create(path_);
      file->write(text_);
      file->commit();
      bucket_.committed_.insert(path_);
    }

   private:
    const FlakyBucket& bucket_;
    std::string path_, text_;
  };
  void may_fail() const {
    if (period_ == 0 || ++calls_ % period_ != 0) return;
    ++failures_;
    base::fail(base::ErrorCode::unavailable, "the bucket does not answer");
  }

  std::shared_ptr<const data::Store> under_;
  int period_;
  mutable std::atomic<int> calls_{0}, failures_{0};
  mutable std::multiset<std::string> committed_;  // the writer's thread only
};

/// One worker of a job whose output lies in a bucket.
WorkerEnd work_on(const JobOptions& options, std::shared_ptr<const FlakyBucket> bucket) {
  base::Log log(base::LogLevel::off);
  base::SystemClock clock;
  const base::Env env{log, clock};
  ArithmeticModel model({});
  const std::string manifest_path = directory_of(options, 0).manifest();
  std::filesystem::create_directories(directory_of(options, 0).workers());
  if (!base::file_exists(manifest_path))
    write_manifest(manifest_path, plan_job(options, model, input_paths(options), [] {}));
  const Manifest manifest = read_manifest(manifest_path);
  const JobDirectory directory = directory_of(options, static_cast<int64_t>(manifest.chunks.size()));
  OutputForm form = output_form(options, directory, model);
  form.store = bucket;
  StageTrace trace(false);
  ChunkDesk desk(directory, manifest.job, *form.store, options.lease.ns, env);
  form.temporary = desk.temporary();
  Worker worker({.options = options,
                 .manifest = manifest,
                 .form = form,
                 .desk = desk,
                 .model = model,
                 .trace = trace,
                 .env = env},
                {});
  return worker.run();
}

TEST(Worker, AStoreThatFailsNowAndThenCostsTimeAlone) {
  const std::string directory = fresh("bucket");
  JobOptions options = small_job(directory);
  EXPECT_TRUE(run(options).all_done);
  const auto whole = output_of(options.output_directory);
  options.output_directory = directory + "/bucket";
  options.state = directory + "/state";
  options.patience.ns = 60 * base::kNsPerSecond;
  const auto bucket = std::make_shared<FlakyBucket>(options.output_directory, 7);
  EXPECT_TRUE(work_on(options, bucket).all_done);
  EXPECT_EQ(output_of(options.output_directory), whole);
  EXPECT_GT(bucket->failures(), 1);
  EXPECT_EQ(std::set<std::string>(bucket->committed().begin(), bucket->committed().end()).size(),
            bucket->committed().size())
      << "a part was uploaded twice";
}

TEST(Worker, AStoreThatStaysAwayEndsTheWorkerWithTheReason) {
  const std::string directory = fresh("bucket_away");
  JobOptions options = small_job(directory);
  options.state = directory + "/state";
  options.patience.ns = 600 * base::kNsPerMs;
  const WorkerEnd end = work_on(options, std::make_shared<FlakyBucket>(options.output_directory, 1));
  EXPECT_FALSE(end.all_done);
  EXPECT_EQ(end.reason, "the bucket does not answer");
  EXPECT_TRUE(work_on(options, std::make_shared<FlakyBucket>(options.output_directory, 0)).all_done);
}

}  // namespace
}  // namespace trireme::batch

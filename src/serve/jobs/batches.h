// Batches of the OpenAI API: files of requests that are answered beside those of clients, and outlive the
// server.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/report/env.h"
#include "base/text/json.h"
#include "serve/jobs/file_store.h"
#include "serve/openai/openai.h"

namespace trireme::serve {

enum class BatchStatus : uint8_t {
  validating,
  in_progress,
  finalizing,
  completed,
  failed,
  expired,
  cancelling,
  cancelled
};
std::string_view to_string(BatchStatus status);

/// A batch as the API shows it; times in seconds since 1970, 0: not yet.
struct BatchRecord {
  std::string id, endpoint, input_file, window, tenant;
  base::Json metadata;  ///< an object or null
  /// Those that the file names, all of which who made the batch may use: its lines ask no other. Nothing: a
  /// record of a version that did not write them.
  std::optional<std::set<std::string>> models = {};
  BatchStatus status = BatchStatus::validating;
  /// Empty: none. Shown once the batch is over, because they are named before they are there.
  std::string output_file, error_file;
  std::string failure;  ///< of a batch that failed, why
  int64_t created_s = 0, started_s = 0, expires_s = 0, finalizing_s = 0, ended_s = 0, cancelling_s = 0;
  int64_t total = 0, completed = 0, failed = 0;  ///< requests

  bool is_over() const;
  /// The API's object "batch".
  base::Json json() const;
};

/// One batch runs at a time, the oldest first, as a job of batch/: its chunks are journaled, so that a server
/// that is killed goes on where it was. Any thread.
class Batches {
 public:
  struct Options {
    std::string directory;     ///< of its own
    int64_t window_rows = 64;  ///< requests under way at most
  };
  /// Reads what an earlier server left, and goes on with it once start() was called; what nobody needs of it
  /// any more is removed. The others outlive it.
  Batches(Options options, FileStore& files, const OpenAiApi& api, const base::Env& env);
  /// Stops the batch under way, which goes on at the next start.
  ~Batches();
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  void start();
  /// Answers nothing more and returns when the requests under way are answered.
  void stop();

  /// Throws invalid_argument for a file that is not there or not of purpose "batch", an endpoint that has no
  /// batches, and a window that is no time ("24h").
  BatchRecord create(BatchRecord wanted);
  /// Throws not_found, also for a batch of somebody else.
  BatchRecord find(const std::string& id, const std::string& tenant) const;
  /// Newest first.
  std::vector<BatchRecord> list(const std::string& tenant) const;
  /// Ends a batch; what was answered before is kept. One that has not begun ends at once. Throws
  /// invalid_argument for one that is over.
  BatchRecord cancel(const std::string& id, const std::string& tenant);

 private:
  void main();
  std::optional<std::string> next() const;
  void run(const std::string& id);
  void finish(BatchRecord batch, const std::string& reason);
  void gather(BatchRecord& batch) const;
  void keep(const BatchRecord& batch) const;
  void clean_up() const;
  void make_room();
  BatchRecord as_of_now(BatchRecord batch) const;
  std::string why_stop(const BatchRecord& batch) const;
  /// Changes a record and writes it.
  BatchRecord change(const std::string& id, const std::function<void(BatchRecord&)>& change);
  std::string path_of(const std::string& id) const { return options_.directory + "/" + id; }
  int64_t now_s() const { return env_.clock.wall_ns() / base::kNsPerSecond; }

  const Options options_;
  FileStore& files_;
  const OpenAiApi& api_;
  const base::Env env_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, BatchRecord> batches_;  // under the mutex
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace trireme::serve

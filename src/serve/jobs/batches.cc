// Batches of the OpenAI API.
#include "serve/jobs/batches.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/files/directory.h"
#include "base/files/file.h"
#include "base/text/options.h"
#include "batch/run_job.h"
#include "serve/access/tenants.h"
#include "serve/jobs/openai_rows.h"
#include "sched/current_error.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;
using base::Json;

constexpr std::string_view kBatchKind = "batch_", kBatchEnding = ".json";
constexpr size_t kMostRecord = 1 << 20, kMostLine = size_t{64} << 20;
constexpr int64_t kChunkRows = 256;
constexpr size_t kMostBatches = 10'000, kMostWindow = 32;
constexpr std::array<std::string_view, 8> kStatus{"validating", "in_progress", "finalizing", "completed",
                                                  "failed",     "expired",     "cancelling", "cancelled"};
constexpr std::string_view kServerEnds = "the server ends", kCancelled = "cancelled", kExpired = "expired";
constexpr std::string_view kFull = "as many files or bytes are kept as may be (--files-limit): delete some";
constexpr const char *kOutput = "output.jsonl", *kErrors = "errors.jsonl";  // in the batch's directory

Json time_or_null(int64_t seconds) { return seconds == 0 ? Json() : Json(seconds); }
Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

[[noreturn]] void fail_unknown_batch(const std::string& id) {
  base::fail(base::ErrorCode::not_found, "No such Batch object: ", id.substr(0, 64));
}

batch::JobOptions job_of(const std::string& input, const std::string& directory) {
  batch::JobOptions job;
  job.model.model = "the server's";
  job.input_files = {input};
  job.input_format = "openai";
  job.input_keep = {"custom_id"};
  job.output_directory = directory;
  job.output_format = "openai";
  job.chunk_rows = kChunkRows;
  job.retries = 8;  // a full queue is only temporary
  job.grace.ns = 5 * base::kNsPerSecond;
  return job;
}

/// The files in a directory whose names begin with "part-", in order.
std::vector<std::string> parts_in(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const std::string& name : base::names_in(directory, error)) {
    if (name.starts_with("part-")) paths.push_back(directory + "/" + name);
  }
  return paths;
}

/// Converts a line of the job's error file to the form of the API's error file.
std::string error_line(const std::string& line) {
  const Json told = base::parse_json(line);
  const Json* kept = told.find("kept");
  const Json* custom_id = kept == nullptr ? nullptr : kept->find("custom_id");
  const Json error =
      Json::object({{"code", told.at("code")}, {"message", told.at("error")}, {"line", told.at("row")}});
  return Json::object({{"id", "batch_req_line_" + std::to_string(told.at("row").as_int())},
                       {"custom_id", custom_id == nullptr ? Json() : *custom_id},
                       {"response", Json()},
                       {"error", error}})
             .dump() +
         "\n";
}

}  // namespace

std::string_view to_string(BatchStatus status) { return kStatus[static_cast<size_t>(status)]; }

bool BatchRecord::is_over() const {
  return status == BatchStatus::completed || status == BatchStatus::failed ||
         status == BatchStatus::expired || status == BatchStatus::cancelled;
}

Json BatchRecord::json() const {
  Json errors;
  if (!failure.empty()) {
    const Json one =
        Json::object({{"code", "batch_failed"}, {"line", Json()}, {"message", failure}, {"param", Json()}});
    errors = Json::object({{"object", "list"}, {"data", Json::array({one})}});
  }
  const auto ended_as = [&](BatchStatus how) { return time_or_null(status == how ? ended_s : 0); };
  return Json::object(
      {{"id", id},
       {"object", "batch"},
       {"endpoint", endpoint},
       {"errors", std::move(errors)},
       {"input_file_id", input_file},
       {"completion_window", window},
       {"status", to_string(status)},
       {"output_file_id", is_over() ? text_or_null(output_file) : Json()},
       {"error_file_id", is_over() ? text_or_null(error_file) : Json()},
       {"created_at", created_s},
       {"in_progress_at", time_or_null(started_s)},
       {"expires_at", time_or_null(expires_s)},
       {"finalizing_at", time_or_null(finalizing_s)},
       {"completed_at", ended_as(BatchStatus::completed)},
       {"failed_at", ended_as(BatchStatus::failed)},
       {"expired_at", ended_as(BatchStatus::expired)},
       {"cancelling_at", time_or_null(cancelling_s)},
       {"cancelled_at", ended_as(BatchStatus::cancelled)},
       {"request_counts", Json::object({{"total", total}, {"completed", completed}, {"failed", failed}})},
       {"metadata", metadata}});
}

namespace {

/// The record as stored on disk: what clients see, and internal members.
Json record_json(const BatchRecord& batch) {
  Json json = batch.json();
  json.set("tenant", batch.tenant);
  json.set("failure", batch.failure);
  json.set("ended_at", batch.ended_s);
  json.set("output_file_id", text_or_null(batch.output_file));
  json.set("error_file_id", text_or_null(batch.error_file));
  if (!batch.models) return json;
  Json models = Json::array();
  for (const std::string& model : *batch.models) models.push_back(model);
  json.set("models", std::move(models));
  return json;
}

std::optional<std::set<std::string>> models_of_record(const Json& record) {
  const Json* list = record.find("models");
  if (list == nullptr) return std::nullopt;
  std::set<std::string> models;
  for (const Json& model : list->as_array()) models.insert(model.as_string());
  return models;
}

BatchRecord read_record(const std::string& path) {
  const Json json = base::parse_json(base::read_file(path, kMostRecord));
  const auto text = [&](const char* key) {
    return json.at(key).is_null() ? std::string() : json.at(key).as_string();
  };
  const auto time = [&](const char* key) {
    return json.at(key).is_null() ? int64_t{0} : json.at(key).as_int();
  };
  const auto status = std::find(kStatus.begin(), kStatus.end(), json.at("status").as_string());
  base::require(status != kStatus.end(), "'", path, "': no status of a batch");
  const Json& counts = json.at("request_counts");
  return {.id = text("id"),
          .endpoint = text("endpoint"),
          .input_file = text("input_file_id"),
          .window = text("completion_window"),
          .tenant = text("tenant"),
          .metadata = json.at("metadata"),
          .models = models_of_record(json),
          .status = static_cast<BatchStatus>(status - kStatus.begin()),
          .output_file = text("output_file_id"),
          .error_file = text("error_file_id"),
          .failure = text("failure"),
          .created_s = time("created_at"),
          .started_s = time("in_progress_at"),
          .expires_s = time("expires_at"),
          .finalizing_s = time("finalizing_at"),
          .ended_s = time("ended_at"),
          .cancelling_s = time("cancelling_at"),
          .total = counts.at("total").as_int(),
          .completed = counts.at("completed").as_int(),
          .failed = counts.at("failed").as_int()};
}

}  // namespace

Batches::Batches(Options options, FileStore& files, const OpenAiApi& api, const base::Env& env)
    : options_(std::move(options)), files_(files), api_(api), env_(env) {
  std::error_code error;
  fs::create_directories(options_.directory, error);
  for (const std::string& name : base::names_in(options_.directory, error)) {
    if (!name.ends_with(kBatchEnding) ||
        !is_id(std::string_view(name).substr(0, name.size() - kBatchEnding.size()), kBatchKind))
      continue;
    try {
      BatchRecord batch = read_record(options_.directory + "/" + name);
      batches_[batch.id] = std::move(batch);
    } catch (const base::Error& e) {
      env_.log.warning("serve", "batch_unreadable", {{"file", name}, {"error", e.message()}});
    }
  }
  clean_up();
}

/// Removes half-written records, and the directories of batches that are over or forgotten.
void Batches::clean_up() const {
  std::error_code error;
  for (const std::string& name : base::names_in(options_.directory, error)) {
    if (is_half_written(name)) fs::remove(path_of(name), error);
    if (!is_id(name, kBatchKind)) continue;
    const auto batch = batches_.find(name);
    const bool is_needed = batch == batches_.end()
                               ? base::file_exists(path_of(name) + std::string(kBatchEnding))
                               : !batch->second.is_over();
    if (!is_needed) fs::remove_all(path_of(name), error);
  }
}

Batches::~Batches() { stop(); }

void Batches::start() {
  thread_ = std::thread([this] { main(); });
}

void Batches::stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

BatchRecord Batches::create(BatchRecord batch) {
  base::require(OpenAiApi::makes_answers(batch.endpoint), "endpoint: '", batch.endpoint.substr(0, 80),
                "' has no batches");
  base::require(files_.find(batch.input_file, batch.tenant).purpose == "batch",
                "input_file_id: the file's purpose is ", "not \"batch\"");
  batch.id = new_id(kBatchKind);
  batch.created_s = now_s();
  base::require(batch.window.size() <= kMostWindow, "completion_window: no time has so many characters");
  batch.expires_s = batch.created_s + base::parse_duration(batch.window).ns / base::kNsPerSecond;
  base::require(batch.expires_s > batch.created_s, "completion_window: '", batch.window, "' is no time");
  batch.status = BatchStatus::validating;
  {
    const std::lock_guard lock(mutex_);
    make_room();
    base::write_file_atomic(path_of(batch.id) + std::string(kBatchEnding), record_json(batch).dump());
    batches_[batch.id] = batch;
  }
  changed_.notify_all();
  return batch;
}

/// Forgets the batch that ended first if there are too many. Needs the lock.
void Batches::make_room() {
  if (batches_.size() < kMostBatches) return;
  auto first = batches_.end();
  for (auto at = batches_.begin(); at != batches_.end(); ++at) {
    if (at->second.is_over() && (first == batches_.end() || at->second.ended_s < first->second.ended_s))
      first = at;
  }
  if (first == batches_.end())
    base::fail(base::ErrorCode::exhausted, kMostBatches, " batches are waiting, which is as many as may");
  std::error_code error;
  fs::remove(path_of(first->first) + std::string(kBatchEnding), error);
  fs::remove_all(path_of(first->first), error);
  batches_.erase(first);
}

BatchRecord Batches::find(const std::string& id, const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  const auto found = batches_.find(id);
  if (found == batches_.end() || !Tenants::is_owner(tenant, found->second.tenant)) fail_unknown_batch(id);
  return as_of_now(found->second);
}

/// A batch whose time is over before it has begun is over, too, whichever one runs.
BatchRecord Batches::as_of_now(BatchRecord batch) const {
  if (batch.is_over() || batch.started_s > 0 || now_s() < batch.expires_s) return batch;
  batch.status = BatchStatus::expired;
  batch.ended_s = batch.expires_s;
  return batch;
}

std::vector<BatchRecord> Batches::list(const std::string& tenant) const {
  std::vector<BatchRecord> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, batch] : batches_) {
      if (Tenants::is_owner(tenant, batch.tenant)) all.push_back(as_of_now(batch));
    }
  }
  std::sort(all.begin(), all.end(), [](const BatchRecord& a, const BatchRecord& b) {
    return std::pair(b.created_s, std::string_view(a.id)) < std::pair(a.created_s, std::string_view(b.id));
  });
  return all;
}

BatchRecord Batches::cancel(const std::string& id, const std::string& tenant) {
  const BatchRecord now = find(id, tenant);
  base::require(!now.is_over(), "Cannot cancel a batch with status '", to_string(now.status), "'.");
  BatchRecord after = change(id, [&](BatchRecord& batch) {
    if (batch.is_over() || batch.status == BatchStatus::finalizing) return;
    batch.status = BatchStatus::cancelling;
    batch.cancelling_s = now_s();
    if (batch.started_s > 0) return;
    batch.status = BatchStatus::cancelled;
    batch.ended_s = batch.cancelling_s;
  });
  changed_.notify_all();
  return after;
}

BatchRecord Batches::change(const std::string& id, const std::function<void(BatchRecord&)>& change) {
  const std::lock_guard lock(mutex_);
  BatchRecord& batch = batches_.at(id);
  BatchRecord next = batch;
  change(next);
  // Nothing has changed where it cannot be written: it is tried again.
  base::write_file_atomic(path_of(id) + std::string(kBatchEnding), record_json(next).dump());
  batch = std::move(next);
  return batch;
}

/// The oldest batch that has not ended; nothing if there is none. Needs the lock.
std::optional<std::string> Batches::next() const {
  const BatchRecord* first = nullptr;
  for (const auto& [id, batch] : batches_) {
    if (!batch.is_over() && (first == nullptr || batch.created_s < first->created_s)) first = &batch;
  }
  return first == nullptr ? std::nullopt : std::optional(first->id);
}

void Batches::main() {
  constexpr auto kPause = std::chrono::seconds(5);  // after a disk failure
  while (!ends_) {
    std::optional<std::string> id;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ends_ || next(); });
      if (!ends_) id = next();
    }
    if (!id) return;
    try {
      run(*id);
    } catch (const std::exception&) {
      const base::Error error = sched::current_error();
      env_.log.error("serve", "batch_failed", {{"batch", *id}, {"error", error.message()}});
      try {
        change(*id, [&](BatchRecord& batch) {
          batch.status = BatchStatus::failed;
          batch.failure = error.message();
          batch.ended_s = now_s();
        });
        std::error_code left;
        fs::remove_all(path_of(*id), left);
      } catch (const base::Error& full) {
        env_.log.error("serve", "batch_not_written", {{"batch", *id}, {"error", full.message()}});
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kPause, [&] { return ends_.load(); });
      }
    }
  }
}

std::string Batches::why_stop(const BatchRecord& batch) const {
  if (ends_) return std::string(kServerEnds);
  if (now_s() >= batch.expires_s) return std::string(kExpired);
  const std::lock_guard lock(mutex_);
  return batches_.at(batch.id).cancelling_s > 0 ? std::string(kCancelled) : std::string();
}

void Batches::run(const std::string& id) {
  const BatchRecord batch = change(id, [&](BatchRecord& b) {
    b = as_of_now(std::move(b));
    if (b.is_over()) return;
    if (b.started_s == 0) b.started_s = now_s();
    if (b.status == BatchStatus::validating) b.status = BatchStatus::in_progress;
  });
  if (batch.is_over()) return;
  const std::string input = files_.path_of(files_.find(batch.input_file, batch.tenant).id);
  const batch::OpenModel open = [&](const batch::ModelOptions&, const std::vector<data::Field>&) {
    OpenAiRows::Parts parts{.api = api_, .window_rows = options_.window_rows, .endpoint = batch.endpoint};
    parts.own.created_s = batch.created_s;
    parts.own.tenant = batch.tenant;
    parts.own.is_background = true;
    if (batch.models) parts.own.models = std::make_shared<const std::set<std::string>>(*batch.models);
    parts.identity = Json::object({{"batch", batch.id}});
    return std::make_unique<OpenAiRows>(std::move(parts));
  };
  bool is_full = !files_.has_room();
  const auto why = [&] {
    const std::string reason = why_stop(batch);
    return reason.empty() && is_full ? std::string(kFull) : reason;
  };
  batch::WorkerHooks hooks;
  hooks.stop_reason = why;
  hooks.progress = [&](const batch::Progress& p) {
    is_full = !files_.has_room();  // once a second, unlike the other reasons: all files are looked at
    const std::lock_guard lock(mutex_);
    BatchRecord& shown = batches_.at(id);
    shown.total = p.rows;
    shown.completed = p.rows_done - p.errors;
    shown.failed = p.errors;
  };
  std::string reason = why();
  if (reason.empty()) {
    const batch::WorkerEnd end = batch::run_job(job_of(input, path_of(id)), open, std::move(hooks), env_);
    reason = end.all_done ? "" : end.reason;
  }
  if (ends_ && !reason.empty()) return;  // the next server continues it
  finish(batch, reason);
}

/// `reason`: why the batch stopped early; empty if it completed.
void Batches::finish(BatchRecord batch, const std::string& reason) {
  const std::string id = batch.id;
  batch = change(id, [&](BatchRecord& b) {
    b.status = BatchStatus::finalizing;
    b.finalizing_s = now_s();
  });
  gather(batch);
  // Named before they are moved: a server that is killed in between moves them to the same names again.
  batch = change(id, [&](BatchRecord& b) {
    b.completed = batch.completed;
    b.failed = batch.failed;
    if (b.completed > 0 && b.output_file.empty()) b.output_file = new_id(kFileKind);
    if (b.failed > 0 && b.error_file.empty()) b.error_file = new_id(kFileKind);
  });
  keep(batch);
  change(id, [&](BatchRecord& b) {
    b.ended_s = now_s();
    b.status = reason.empty()         ? BatchStatus::completed
               : reason == kCancelled ? BatchStatus::cancelled
               : reason == kExpired   ? BatchStatus::expired
                                      : BatchStatus::failed;
    if (b.status == BatchStatus::failed) b.failure = reason;
  });
  std::error_code error;  // remaining files are useless but harmless
  fs::remove_all(path_of(id), error);
}

/// Puts the job's parts together, in the form of the API's files, and counts the requests in them.
void Batches::gather(BatchRecord& batch) const {
  const std::string directory = path_of(batch.id);
  const auto collect = [&](const std::vector<std::string>& parts, const char* name, bool is_error) {
    const std::string path = directory + "/" + name;
    int64_t lines = 0;
    base::AtomicFile out(path);
    for (const std::string& part : parts) {
      std::ifstream in(part, std::ios::binary);
      for (std::string line; std::getline(in, line); ++lines) {
        base::check(line.size() <= kMostLine, "a line of an answer is too long");
        out.write(is_error ? error_line(line) : line + "\n");
      }
      base::require(!in.bad(), "cannot read '", part, "'");
    }
    out.commit();
    return lines;
  };
  batch.completed = batch.failed = 0;
  if (!base::file_exists(directory + "/_job/manifest")) return;  // the job had not begun
  batch.completed = collect(parts_in(directory), kOutput, false);
  batch.failed = collect(parts_in(directory + "/errors"), kErrors, true);
}

/// Makes them files of the client.
void Batches::keep(const BatchRecord& batch) const {
  const auto adopt = [&](const char* from, const std::string& id, const char* ending) {
    files_.adopt(path_of(batch.id) + "/" + from, {.id = id,
                                                  .name = batch.id + ending,
                                                  .purpose = "batch_output",
                                                  .created_s = now_s(),
                                                  .tenant = batch.tenant});
  };
  if (batch.completed > 0) adopt(kOutput, batch.output_file, "_output.jsonl");
  if (batch.failed > 0) adopt(kErrors, batch.error_file, "_error.jsonl");
}

}  // namespace trireme::serve

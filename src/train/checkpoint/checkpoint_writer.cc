// The checkpoint thread: buffers pass between owner and writer, and are never used by both at once.
#include "train/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>

#include "base/clock.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

/// Copies into the buffers of the previous staging if types and shapes match.
void copy_pieces(const std::vector<CheckpointPiece>& from, std::vector<CheckpointPiece>& to) {
  bool fits = from.size() == to.size();
  for (size_t i = 0; fits && i < from.size(); ++i) {
    fits = from[i].name == to[i].name && from[i].box == to[i].box &&
           from[i].content.type() == to[i].content.type();
  }
  if (!fits) {
    to.clear();
    for (const CheckpointPiece& p : from) {
      to.push_back({p.name, p.dims, p.box, tensor::Tensor::empty(p.content.dtype(), p.content.dims())});
    }
  }
  for (size_t i = 0; i < from.size(); ++i) {
    const tensor::Tensor& t = from[i].content;
    if (t.bytes() > 0) std::memcpy(to[i].content.mutable_raw(), t.raw(), static_cast<size_t>(t.bytes()));
  }
}

constexpr base::JsonLimits kPartLimits{.depth = 100, .size_bytes = size_t{1} << 30};

/// Runs `body`; an exception becomes the error of the outcome.
void guard(CheckpointOutcome& outcome, const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& e) {
    outcome.error = e;
  } catch (const std::exception& e) {
    outcome.error = base::Error(base::ErrorCode::internal, e.what());
  }
}

/// Removes a directory; what cannot be removed has a hidden name, and the next start removes it.
void discard(const std::string& directory) {
  std::error_code ignored;
  fs::remove_all(directory, ignored);
}

/// Serialises an outcome for another rank.
std::string text_of(const CheckpointOutcome& o) {
  base::Json json =
      base::Json::object({{"path", o.written.path}, {"bytes", o.written.bytes}, {"committed", o.committed}});
  if (o.error) {
    json.set("code", static_cast<int64_t>(o.error->code()));
    json.set("error", o.error->message());
  }
  return json.dump();
}

CheckpointOutcome outcome_of(const std::string& text) {
  const base::Json json = base::parse_json(text);
  CheckpointOutcome o;
  o.written = {json.at("path").as_string(), json.at("bytes").as_int()};
  o.committed = json.at("committed").as_bool();
  if (json.find("error") != nullptr) {
    o.error =
        base::Error(static_cast<base::ErrorCode>(json.at("code").as_int()), json.at("error").as_string());
  }
  return o;
}

int64_t now_ns() { return base::SystemClock().now_ns(); }

std::string stem_of(const Ranks& ranks) {
  std::array<char, 24> name;
  std::snprintf(name.data(), name.size(), "tensors-r%05d", ranks.rank());
  return ranks.size() == 1 ? "tensors" : name.data();
}

/// Removes entries with hidden names, which a process was writing or removing when it died.
void remove_leftovers(FileOps& files, const std::string& root) {
  std::error_code error;
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".step-") || name.starts_with(".trash-")) found.push_back(entry.path().string());
  }
  for (const std::string& path : found) files.remove_tree(path);
}

double score_of(const std::string& directory) {
  try {
    return load_checkpoint_meta(directory).meta.get_or("score", std::nan(""));
  } catch (const base::Error&) {
    return NAN;  // corrupt: never the best, and pruned soon
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(CheckpointWriterOptions options, FileOps& files, Ranks ranks)
    : options_(std::move(options)), files_(files), ranks_(ranks) {
  if (ranks_.is_leader()) {
    files_.make_directory(options_.root);
    remove_leftovers(files_, options_.root);
    const std::string resumed = checkpoint_name(options_.resumed_step);
    std::vector<Kept> past;
    for (const std::string& name : list_checkpoints(options_.root)) {
      const bool abandoned = name.size() == resumed.size() && name > resumed;
      const double score = abandoned ? NAN : score_of(options_.root + "/" + name);
      (abandoned ? kept_ : past).push_back({name, score});
    }
    kept_.insert(kept_.end(), past.begin(), past.end());
  }
  thread_ = std::thread([this] { work(); });
}

CheckpointWriter::~CheckpointWriter() {
  jobs_.close();
  thread_.join();
}

std::optional<CheckpointOutcome> CheckpointWriter::save(const Checkpoint& head, const Pieces& pieces,
                                                        double score) {
  std::optional<CheckpointOutcome> before = wait();
  started_ns_ = now_ns();
  head_ = {head.step, head.meta, {}};
  score_ = score;
  if (std::isfinite(score)) head_.meta.set("score", score);
  Job job{.head = head_, .staging = std::move(staging_), .score = score};
  copy_pieces(pieces, job.staging);
  phase_ = Phase::writing;
  own_.reset();
  if (!is_alone()) {
    Done failed;
    if (ranks_.is_leader()) {  // before other ranks write there
      guard(failed.outcome, [&] {
        files_.remove_tree(growing_directory(options_.root, head.step));
        files_.make_directory(growing_directory(options_.root, head.step));
      });
    }
    ranks_.meet();
    if (failed.outcome.error) {
      failed.staging = std::move(job.staging);
      own_ = std::move(failed);
      return before;
    }
  }
  base::check(jobs_.push(std::move(job)) == base::PushResult::ok, "the checkpoint's thread is gone");
  return before;
}

/// Takes the result of this rank's thread; returns false if there is none yet.
bool CheckpointWriter::take_done(bool waits) {
  const bool has_job = phase_ == Phase::writing || ranks_.is_leader();
  if (own_ || !has_job) return true;
  own_ = waits ? done_.pop() : done_.try_pop();
  return own_.has_value();
}

std::optional<CheckpointOutcome> CheckpointWriter::advance() {
  if (is_alone()) return end(std::move(own_->outcome));
  return phase_ == Phase::writing ? end_of_writing() : end_of_commit();
}

std::optional<CheckpointOutcome> CheckpointWriter::poll() {
  if (phase_ == Phase::idle) return std::nullopt;
  if (!options_.asynchronous) return wait();
  double pending = take_done(false) ? 0 : 1;
  ranks_.max(std::span(&pending, 1));
  return pending > 0 ? std::nullopt : advance();
}

std::optional<CheckpointOutcome> CheckpointWriter::wait() {
  // Ranks meet repeatedly, because a watchdog would report a rank that waits in a single collective as stuck.
  constexpr auto kNap = std::chrono::milliseconds(2);
  std::optional<CheckpointOutcome> outcome;
  while (phase_ != Phase::idle && !outcome) {
    double pending = take_done(is_alone()) ? 0 : 1;
    ranks_.max(std::span(&pending, 1));
    if (pending > 0) {
      std::this_thread::sleep_for(kNap);
    } else {
      outcome = advance();
    }
  }
  return outcome;
}

/// Called when all files are flushed, or a rank failed.
std::optional<CheckpointOutcome> CheckpointWriter::end_of_writing() {
  CheckpointOutcome& own = own_->outcome;
  double failed = own.error ? 1 : 0;
  ranks_.max(std::span(&failed, 1));
  if (failed > 0) {
    if (ranks_.is_leader()) discard(growing_directory(options_.root, head_.step));
    return end(first_failure(own));
  }
  const base::Json written = base::Json::object({{"bytes", own_->part.bytes}, {"chunks", own_->part.chunks}});
  const std::vector<std::string> all = ranks_.gather(written.dump());
  staging_ = std::move(own_->staging);
  own_.reset();
  phase_ = Phase::committing;
  if (!ranks_.is_leader()) return std::nullopt;
  Job job{.phase = Phase::committing, .head = head_, .staging = {}, .score = score_};
  for (const std::string& text : all) {
    const base::Json part = base::parse_json(text, kPartLimits);
    job.parts.push_back({part.at("chunks"), part.at("bytes").as_int()});
  }
  base::check(jobs_.push(std::move(job)) == base::PushResult::ok, "the checkpoint's thread is gone");
  return std::nullopt;
}

/// Passes the leader's outcome to every rank.
CheckpointOutcome CheckpointWriter::end_of_commit() {
  const CheckpointOutcome outcome =
      outcome_of(ranks_.from_leader(own_ ? text_of(own_->outcome) : std::string()));
  return end(outcome);
}

CheckpointOutcome CheckpointWriter::end(CheckpointOutcome outcome) {
  if (own_ && phase_ == Phase::writing) staging_ = std::move(own_->staging);
  own_.reset();
  phase_ = Phase::idle;
  outcome.step = head_.step;
  outcome.seconds = static_cast<double>(now_ns() - started_ns_) * 1e-9;
  return outcome;
}

/// Returns the error of the first rank that failed, on every rank.
CheckpointOutcome CheckpointWriter::first_failure(const CheckpointOutcome& own) const {
  const std::vector<std::string> all = ranks_.gather(own.error ? text_of(own) : std::string());
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    CheckpointOutcome failed = outcome_of(all[r]);
    failed.error = failed.error->with(base::concat("rank ", r));
    return failed;
  }
  return own;
}

void CheckpointWriter::work() {
  while (std::optional<Job> job = jobs_.pop()) {
    Done done = run(*job);
    done.staging = std::move(job->staging);
    if (done_.push(std::move(done)) != base::PushResult::ok) return;
  }
}

CheckpointWriter::Done CheckpointWriter::run(const Job& job) {
  Done done;
  const std::string growing = growing_directory(options_.root, job.head.step);
  guard(done.outcome, [&] {
    if (is_alone()) {
      done.outcome.written = write_checkpoint(files_, options_.root, job.head, job.staging);
    } else if (job.phase == Phase::writing) {
      done.part = write_part(files_, growing, stem_of(ranks_), job.staging);
      return;
    } else {
      done.outcome.written = commit_checkpoint(files_, options_.root, job.head, job.parts);
    }
    done.outcome.committed = true;
    keep(job, !done.outcome.written.pointer_error);
  });
  if (done.outcome.error && !is_alone()) {
    done.outcome.error = done.outcome.error->with("checkpoint of step " + std::to_string(job.head.step));
    if (job.phase == Phase::committing) discard(growing);
  }
  return done;
}

/// Lists a committed checkpoint and removes those that need not stay. Throws what failed after all else is
/// done.
void CheckpointWriter::keep(const Job& job, bool has_pointer) {
  const std::string name = checkpoint_name(job.head.step);
  std::erase_if(kept_, [&](const Kept& k) { return k.name == name; });
  std::erase(doomed_, name);
  kept_.push_back({name, job.score});
  const std::optional<base::Error> failed =
      prune(has_pointer ? std::string() : read_pointer(options_.root, "latest"));
  if (!has_pointer) write_pointer(files_, options_.root, "latest", name);  // there may be room for it now
  if (failed) throw base::Error(*failed);
}

void CheckpointWriter::remove(const std::string& name) {
  // Renamed first, so that nobody finds a checkpoint that is partly removed. It may be renamed already, or
  // have been removed by somebody else.
  const std::string path = options_.root + "/" + name, trash = options_.root + "/.trash-" + name;
  std::error_code ignored;
  if (fs::exists(path, ignored)) files_.rename(path, trash);
  files_.remove_tree(trash);
}

/// `needed`: stays in any case. Returns the first error; what comes after it is done all the same.
std::optional<base::Error> CheckpointWriter::prune(const std::string& needed) {
  std::optional<base::Error> failed;
  const auto succeeds = [&](const std::function<void()>& body) {
    try {
      body();
      return true;
    } catch (const base::Error& e) {
      if (!failed) failed = e;
      return false;
    }
  };
  std::vector<const Kept*> ranked;
  for (const Kept& k : kept_) {
    if (std::isfinite(k.score)) ranked.push_back(&k);
  }
  // Among equal scores, the older checkpoint wins, because it needed less training.
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Kept* a, const Kept* b) { return a->score > b->score; });
  if (!ranked.empty()) succeeds([&] { write_pointer(files_, options_.root, "best", ranked.front()->name); });
  if (options_.keep <= 0) return failed;
  ranked.resize(std::min(ranked.size(), static_cast<size_t>(options_.keep_best)));
  for (size_t i = 0; i + static_cast<size_t>(options_.keep) < kept_.size(); ++i) {
    const bool is_best = std::find(ranked.begin(), ranked.end(), &kept_[i]) != ranked.end();
    if (!is_best && kept_[i].name != needed) doomed_.push_back(kept_[i].name);
  }
  std::erase_if(kept_, [&](const Kept& k) {
    return std::find(doomed_.begin(), doomed_.end(), k.name) != doomed_.end();
  });
  std::erase_if(doomed_, [&](const std::string& name) { return succeeds([&] { remove(name); }); });
  return failed;
}

}  // namespace trireme::train

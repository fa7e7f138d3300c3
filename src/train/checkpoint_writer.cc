// The checkpoint thread: memory goes round between the owner and the writer, nothing is shared.
#include "train/checkpoint_writer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

/// Copies into the memory of the last staging where type and shape fit.
void copy_tensors(const model::NamedTensors& from, model::NamedTensors& to) {
  bool fits = from.size() == to.size();
  for (size_t i = 0; fits && i < from.size(); ++i) {
    const auto& [name, t] = from[i];
    fits = name == to[i].first && t.dtype() == to[i].second.dtype() && t.dims() == to[i].second.dims();
  }
  if (!fits) {
    to.clear();
    for (const auto& [name, t] : from) to.emplace_back(name, tensor::Tensor::empty(t.dtype(), t.dims()));
  }
  for (size_t i = 0; i < from.size(); ++i) {
    const tensor::Tensor& t = from[i].second;
    if (t.bytes() > 0) std::memcpy(to[i].second.mutable_raw(), t.raw(), static_cast<size_t>(t.bytes()));
  }
}

/// Hidden names are what a process that died was writing or removing.
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
    return NAN;  // corrupt: never the best, and soon pruned
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(CheckpointWriterOptions options, FileOps& files)
    : options_(std::move(options)), files_(files) {
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
  thread_ = std::thread([this] { work(); });
}

CheckpointWriter::~CheckpointWriter() {
  jobs_.close();
  thread_.join();
}

int64_t CheckpointWriter::staging_bytes(const model::NamedTensors& tensors) {
  int64_t sum = 0;
  for (const auto& [name, t] : tensors) sum += t.bytes();
  return sum;
}

std::optional<CheckpointOutcome> CheckpointWriter::save(const Checkpoint& checkpoint, double score) {
  std::optional<CheckpointOutcome> before = wait();
  Job job{std::move(staging_), score};
  copy_tensors(checkpoint.tensors, job.staging.tensors);
  job.staging.step = checkpoint.step;
  job.staging.meta = checkpoint.meta;
  if (std::isfinite(score)) job.staging.meta.set("score", score);
  in_flight_ = jobs_.push(std::move(job)) == base::PushResult::ok;
  return before;
}

CheckpointOutcome CheckpointWriter::take(Done done) {
  staging_ = std::move(done.staging);
  in_flight_ = false;
  return std::move(done.outcome);
}

std::optional<CheckpointOutcome> CheckpointWriter::poll() {
  if (!in_flight_) return std::nullopt;
  std::optional<Done> done = options_.asynchronous ? done_.try_pop() : done_.pop();
  if (!done) return std::nullopt;
  return take(std::move(*done));
}

std::optional<CheckpointOutcome> CheckpointWriter::wait() {
  if (!in_flight_) return std::nullopt;
  return take(*done_.pop());
}

void CheckpointWriter::work() {
  while (std::optional<Job> job = jobs_.pop()) {
    Done done{write(*job), std::move(job->staging)};
    if (done_.push(std::move(done)) != base::PushResult::ok) return;
  }
}

CheckpointOutcome CheckpointWriter::write(const Job& job) {
  const auto start = std::chrono::steady_clock::now();
  CheckpointOutcome outcome;
  outcome.step = job.staging.step;
  try {
    outcome.written = write_checkpoint(files_, options_.root, job.staging);
    outcome.committed = true;
    const std::string name = checkpoint_name(job.staging.step);
    std::erase_if(kept_, [&](const Kept& k) { return k.name == name; });
    kept_.push_back({name, job.score});
    prune();
  } catch (const base::Error& e) {
    outcome.error = e;
  } catch (const std::exception& e) {
    outcome.error = base::Error(base::ErrorCode::internal, e.what());
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

void CheckpointWriter::remove(const std::string& name) {
  // First out of sight, so that nobody finds a checkpoint that is half gone.
  const std::string trash = options_.root + "/.trash-" + name;
  files_.rename(options_.root + "/" + name, trash);
  files_.remove_tree(trash);
}

void CheckpointWriter::prune() {
  std::vector<const Kept*> ranked;
  for (const Kept& k : kept_) {
    if (std::isfinite(k.score)) ranked.push_back(&k);
  }
  // Of equal scores the older wins: it was as good with less training.
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Kept* a, const Kept* b) { return a->score > b->score; });
  if (!ranked.empty()) write_pointer(files_, options_.root, "best", ranked.front()->name);
  if (options_.keep <= 0) return;
  ranked.resize(std::min(ranked.size(), static_cast<size_t>(options_.keep_best)));
  std::vector<std::string> doomed;
  for (size_t i = 0; i + static_cast<size_t>(options_.keep) < kept_.size(); ++i) {
    if (std::find(ranked.begin(), ranked.end(), &kept_[i]) == ranked.end()) doomed.push_back(kept_[i].name);
  }
  for (const std::string& name : doomed) {
    remove(name);
    std::erase_if(kept_, [&](const Kept& k) { return k.name == name; });
  }
}

}  // namespace trireme::train

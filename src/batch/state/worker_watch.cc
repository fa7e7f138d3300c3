// Looking at workers' files: the lock first, then whether the bytes move.
#include "batch/state/worker_watch.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/files/directory.h"
#include "batch/state/posix_file.h"
#include "batch/state/worker_seat.h"

namespace trireme::batch {
namespace {

constexpr int64_t kMostWatchedBytes = 256;

/// Nothing where there is none.
std::optional<PosixFile> open_file(const std::string& path) {
  try {
    return std::optional<PosixFile>(std::in_place, path, O_RDWR);
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::not_found) return std::nullopt;
    throw;
  }
}

std::optional<PosixFile> open_seat(const std::string& directory, uint64_t worker) {
  return open_file(directory + "/" + worker_name(worker));
}

}  // namespace

bool is_dead(const std::string& directory, uint64_t worker) {
  const std::optional<PosixFile> file = open_seat(directory, worker);
  return !file || !file->is_locked();
}

bool WorkerWatch::is_away(uint64_t worker) {
  const std::optional<PosixFile> file = open_seat(directory_, worker);
  if (!file || !file->is_locked()) return true;
  std::string bytes = file->read(0, kMostWatchedBytes);
  const int64_t now = clock_.now_ns();
  const auto [at, is_new] = seen_.try_emplace(worker, Seen{bytes, now});
  Seen& seen = at->second;
  if (!is_new && seen.bytes != bytes) seen = {std::move(bytes), now};
  return now - seen.since_ns >= lease_ns_;
}

std::set<uint64_t> WorkerWatch::away(const std::set<uint64_t>& workers) {
  std::erase_if(seen_, [&](const auto& entry) { return !workers.contains(entry.first); });
  std::set<uint64_t> out;
  for (const uint64_t worker : workers) {
    if (worker != own_ && is_away(worker)) out.insert(worker);
  }
  return out;
}

void remove_dead(const std::string& directory, const std::string& temporary) {
  for (const uint64_t worker : workers_in(directory)) {
    if (is_dead(directory, worker)) remove_file(directory + "/" + worker_name(worker));
  }
  std::error_code none;
  for (const std::string& name : base::names_in(directory, none)) {
    if (!name.ends_with(kNewSeat)) continue;
    const std::optional<PosixFile> file = open_file(directory + "/" + name);
    if (file && !file->is_locked()) remove_file(file->path());
  }
  // Temporary directories are listed first: a worker makes its own after its seat, so whoever owns one of
  // those that are listed has its seat by now, or is dead.
  const std::vector<uint64_t> owners = workers_in(temporary);
  const std::vector<uint64_t> living = workers_in(directory);
  for (const uint64_t worker : owners) {
    if (std::find(living.begin(), living.end(), worker) != living.end()) continue;
    std::error_code error;  // what cannot be removed now goes with the next start
    std::filesystem::remove_all(temporary + "/" + worker_name(worker), error);
  }
}

}  // namespace trireme::batch

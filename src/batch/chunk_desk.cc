// Leases and commits as transactions of the journal, and the thread that shows life and watches the others.
#include "batch/chunk_desk.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "batch/state/posix_file.h"

namespace trireme::batch {
namespace {

constexpr int64_t kMostBeatNs = 2 * base::kNsPerSecond;

Record record_of(RecordKind kind, const base::Env& env, uint64_t worker) {
  return {.kind = kind, .worker = worker, .wall_ns = env.clock.wall_ns()};
}

/// Removes the files below `below` ("" or "errors") of the output whose names say so.
void remove_undone(const data::Store& store, const JobDirectory& directory, const std::string& below,
                   const std::function<bool(const std::string&)>& is_undone) {
  if (!store.exists(directory.at(below))) return;
  for (const data::StoreEntry& entry : store.list(directory.at(below))) {
    const std::string name = directory.name_of(entry.path);
    if (entry.is_directory || !is_undone(name)) continue;
    store.remove(directory.at(below.empty() ? name : below + "/" + name));
  }
}

}  // namespace

ChunkDesk::ChunkDesk(const JobDirectory& directory, uint64_t job, const data::Store& output, int64_t lease_ns,
                     base::Env env)
    : directory_(directory),
      env_(env),
      lease_ns_(lease_ns),
      seat_(directory.workers()),
      journal_(directory.journal(), job, directory.chunks),
      watch_(directory.workers(), seat_.worker(), lease_ns, env.clock) {
  tidy(output);
  look_around();
  heart_ = std::thread([this] { watch(); });
}

ChunkDesk::~ChunkDesk() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ending_.notify_all();
  heart_.join();
  std::error_code error;  // what stays is removed by the next worker that starts
  std::filesystem::remove_all(temporary(), error);
}

void ChunkDesk::tidy(const data::Store& output) {
  remove_dead(directory_.workers(), directory_.temporary());
  // Who renames does so with the lock held and records it before letting go: what has a name now, and no
  // record, was left by a worker that is dead.
  journal_.transact([&](Transaction& t) {
    const auto undone_with = [&](const std::string& ending) {
      return [&, ending](const std::string& name) {
        const int64_t chunk = directory_.chunk_of(name, ending);
        return chunk >= 0 && !t.table().is_done(chunk);
      };
    };
    remove_undone(output, directory_, "", undone_with(directory_.ending));
    remove_undone(output, directory_, "errors", undone_with(".jsonl"));
    Record record = record_of(RecordKind::worker, env_, worker());
    record.text = this_process();
    t.add(std::move(record));
  });
}

/// The token of a chunk that this worker has in hand; 0: it has it not.
uint64_t ChunkDesk::token_of(int64_t chunk) const {
  return held_.with([&](const auto& held) {
    const auto found = held.find(chunk);
    return found == held.end() ? uint64_t{0} : found->second;
  });
}

std::optional<int64_t> ChunkDesk::take() {
  const std::set<uint64_t> away = away_.copy();
  std::optional<int64_t> taken;
  const uint64_t token = ++tokens_;
  journal_.transact([&](Transaction& t) {
    taken.reset();
    const auto take_one = [&](int64_t chunk) {
      const uint64_t own = token_of(chunk);
      if (own == 0) taken = chunk;
      Record record = record_of(RecordKind::lease, env_, worker());
      record.chunk = chunk;
      record.token = own == 0 ? token : own;
      t.add(std::move(record));
    };
    std::vector<int64_t> lost;
    for (const auto& [chunk, lease] : t.table().leases()) {
      // Its own, but not in hand: what could not be given back, since there was no room for the record.
      const bool is_left = lease.worker == worker() && token_of(chunk) == 0;
      if (is_left || away.contains(lease.worker)) lost.push_back(chunk);
    }
    for (size_t i = 0; i < lost.size() && !taken; ++i) take_one(lost[i]);
    while (!taken) {
      const int64_t open = t.table().next_open();
      if (open < 0) return;
      take_one(open);
    }
  });
  if (taken) held_.with([&](auto& held) { held[*taken] = token; });
  return taken;
}

ChunkDesk::Verdict ChunkDesk::commit(int64_t chunk, const ChunkResult& result,
                                     const std::function<Effort(const ChunkTable&)>& publish) {
  const uint64_t token = token_of(chunk);
  Verdict verdict = Verdict::lost;
  journal_.transact([&](Transaction& t) {
    const Lease* newest = t.table().lease_of(chunk);
    if (newest == nullptr || *newest != Lease{worker(), token}) return;
    const Effort effort = publish(t.table());
    Record record = record_of(RecordKind::done, env_, worker());
    record.chunk = chunk;
    record.token = token;
    record.result = result;
    record.effort = effort;
    t.add(std::move(record));
    verdict = Verdict::committed;
  });
  held_.with([&](auto& held) { held.erase(chunk); });
  return verdict;
}

void ChunkDesk::give_back(int64_t chunk, const std::string& why) {
  const uint64_t token = held_.with([&](auto& held) {
    const auto found = held.find(chunk);
    if (found == held.end()) return uint64_t{0};
    const uint64_t own = found->second;
    held.erase(found);  // even if the journal cannot be told: take() finds it again
    return own;
  });
  if (token == 0) return;
  journal_.transact([&](Transaction& t) {
    const Lease* newest = t.table().lease_of(chunk);
    if (newest == nullptr || *newest != Lease{worker(), token}) return;
    Record record = record_of(RecordKind::given_back, env_, worker());
    record.chunk = chunk;
    record.token = token;
    record.text = why;
    t.add(std::move(record));
  });
}

void ChunkDesk::give_back_all(const std::string& why) noexcept {
  try {
    std::vector<int64_t> chunks;
    held_.with([&](const auto& held) {
      for (const auto& [chunk, token] : held) chunks.push_back(chunk);
    });
    for (const int64_t chunk : chunks) give_back(chunk, why);
  } catch (const std::exception& e) {
    held_.with([](auto& held) { held.clear(); });
    env_.log.warning("batch", "give_back", {{"error", e.what()}});
  }
}

void ChunkDesk::leave(const std::string& why) noexcept {
  try {
    journal_.transact([&](Transaction& t) {
      Record record = record_of(RecordKind::ended, env_, worker());
      record.text = why;
      t.add(std::move(record));
    });
  } catch (const std::exception& e) {
    env_.log.warning("batch", "leave", {{"error", e.what()}});
  }
}

void ChunkDesk::look_around() {
  std::set<uint64_t> away = watch_.away(journal_.owners());
  away_.with([&](auto& known) { known = std::move(away); });
}

void ChunkDesk::watch() {
  const auto beat = std::chrono::nanoseconds(std::min(lease_ns_ / 5, kMostBeatNs));
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, beat, [&] { return ends_; })) {
    try {
      seat_.beat();
      look_around();
    } catch (const base::Error& e) {
      // A disk that is full or away for a while: others see no life, and take over what is due.
      env_.log.warning("batch", "heartbeat", {{"error", e.message()}});
    }
  }
}

}  // namespace trireme::batch

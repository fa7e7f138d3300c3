// Where a worker takes chunks and hands them in: the journal, its own seat, and a watch over the others.
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

#include "base/guarded.h"
#include "base/report/env.h"
#include "batch/state/chunk_table.h"
#include "batch/state/job_directory.h"
#include "batch/state/journal.h"
#include "batch/state/worker_seat.h"
#include "batch/state/worker_watch.h"
#include "data/store/store.h"

namespace trireme::batch {

/// Any thread. A worker lives as long as its desk; what it still holds then is free for the others.
class ChunkDesk {
 public:
  /// Sits down: takes a seat, tells the journal, removes what dead workers left, and the outputs that no
  /// record says are done. `lease_ns`: how long a worker may show no life.
  ChunkDesk(const JobDirectory& directory, uint64_t job, const data::Store& output, int64_t lease_ns,
            base::Env env);
  /// Ends the heartbeat; the temporary files go.
  ~ChunkDesk();
  ChunkDesk(const ChunkDesk&) = delete;
  ChunkDesk& operator=(const ChunkDesk&) = delete;

  uint64_t worker() const { return seat_.worker(); }
  std::string temporary() const { return directory_.temporary() + "/" + worker_name(worker()); }

  /// The next chunk that nobody has, or whose owner is away; nothing: others work on all that is left. A
  /// chunk that this worker still has in hand, though another took it over and is away or gave it back since,
  /// is leased again without being given a second time.
  std::optional<int64_t> take();
  enum class Verdict { committed, lost };
  /// Calls `publish` with what is done so far and records the chunk as done, all with the journal's lock
  /// held, if this worker's lease is still the newest; `lost`: another has taken the chunk over, and nothing
  /// was done.
  Verdict commit(int64_t chunk, const ChunkResult& result,
                 const std::function<Effort(const ChunkTable&)>& publish);
  void give_back(int64_t chunk, const std::string& why);
  /// Everything that this worker still has. Does not throw: what cannot be given back is free when the worker
  /// has ended.
  void give_back_all(const std::string& why) noexcept;
  /// Leaves a last word in the journal, for reports. Does not throw.
  void leave(const std::string& why) noexcept;

  /// What is known of the job; refresh() asks the journal first.
  void look(const std::function<void(const ChunkTable&)>& look) const { journal_.look(look); }
  void refresh() { journal_.refresh(); }

 private:
  uint64_t token_of(int64_t chunk) const;
  void tidy(const data::Store& output);
  void watch();
  void look_around();

  JobDirectory directory_;
  base::Env env_;
  int64_t lease_ns_;
  WorkerSeat seat_;
  Journal journal_;
  base::Guarded<std::map<int64_t, uint64_t>> held_;  ///< chunks of this worker with the leases' tokens
  base::Guarded<std::set<uint64_t>> away_;
  std::atomic<uint64_t> tokens_{0};
  WorkerWatch watch_;  ///< the heartbeat's thread only
  std::mutex mutex_;
  std::condition_variable ending_;
  bool ends_ = false;
  std::thread heart_;
};

}  // namespace trireme::batch

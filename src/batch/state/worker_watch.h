// Tells which other workers of a job live, by looking at their files with one's own clock.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"

namespace trireme::batch {

/// No clocks of different machines are compared: a worker is away when its file has no lock any more, or when
/// its bytes stayed the same for `lease_ns` of this observer's monotonic clock. One thread.
class WorkerWatch {
 public:
  /// `directory` of the workers' files; `own` is not watched.
  WorkerWatch(std::string directory, uint64_t own, int64_t lease_ns, const base::Clock& clock)
      : directory_(std::move(directory)), own_(own), lease_ns_(lease_ns), clock_(clock) {}

  /// Of these workers, those whose leases nobody honours any more. Looks at each file once.
  std::set<uint64_t> away(const std::set<uint64_t>& workers);

 private:
  struct Seen {
    std::string bytes;
    int64_t since_ns = 0;
  };
  bool is_away(uint64_t worker);

  std::string directory_;
  uint64_t own_;
  int64_t lease_ns_;
  const base::Clock& clock_;
  std::map<uint64_t, Seen> seen_;  ///< workers that were asked for lately
};

/// True where nobody holds the worker's file, or it is gone.
bool is_dead(const std::string& directory, uint64_t worker);

/// Removes the files of workers that are dead, and their directories below `temporary`.
void remove_dead(const std::string& directory, const std::string& temporary);

}  // namespace trireme::batch

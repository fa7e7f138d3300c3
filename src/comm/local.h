// Ranks as threads of one process: collectives that read the peers' buffers where they are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace trireme::comm {

struct LocalOptions {
  /// How long a rank may wait for others before the world is given up with a report; 0: for ever.
  int64_t deadline_ns = 0;
  /// Gets each report of the watchdog, on its thread, before the ranks fail with it.
  std::function<void(const std::string& report)> on_stuck;
};

/// A world of `size` ranks. Its communicators use shared memory only: an all-reduce moves each byte in and
/// out once, without staging, and after `split` nothing allocates. Ranks spin for some microseconds and then
/// sleep.
class LocalWorld {
 public:
  explicit LocalWorld(int size, LocalOptions options = {});
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  int size() const;
  /// The communicator of one rank over the whole world; lives as long as the world.
  Communicator& communicator(int rank);

  /// Says that a rank is gone: every rank that waits or comes later, in any group of this world, gets
  /// unavailable with this text. Operations that all ranks have started still finish. From any thread.
  void fail(int rank, const std::string& why);

  /// Runs `body` on one thread a rank, then a last barrier, and joins them. A rank that throws fails the
  /// world; the first such error, with the noun "rank r", is thrown here.
  void run(const std::function<void(Communicator&)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm

// Ranks as processes of an MPI job: the same collectives, order and errors as local ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace trireme::comm {

/// Whether this program was built with MPI.
bool has_mpi();

/// MPI of this process, from its beginning to its end: at most one a process, made on the main thread. Throws
/// unsupported in a program built without MPI.
class MpiSession {
 public:
  MpiSession();
  /// Ends MPI if all ranks came out of their worlds; else leaves that to the launcher.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int size() const;

 private:
  friend class MpiWorld;
  struct State;
  std::unique_ptr<State> state_;
};

struct MpiOptions {
  /// How long a rank may wait for others before the world is given up with a report; 0: for ever.
  int64_t deadline_ns = 0;
  /// Gets the report of this rank's watchdog, on its thread, before the ranks fail with it.
  std::function<void(const std::string& report)> on_stuck = {};
};

/// All ranks of a job. Collective: every process makes and ends the same worlds in the same order.
class MpiWorld {
 public:
  explicit MpiWorld(MpiSession& session, MpiOptions options = {});
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  /// Lives as long as the world.
  Communicator& communicator();

  /// Runs `body` on this process's rank, then a last barrier. A rank that throws fails the world; the first
  /// such error, with the noun "rank r", is thrown here on every rank.
  void run(const std::function<void(Communicator&)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm

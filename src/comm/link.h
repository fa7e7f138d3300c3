// Byte transfers between the ranks of a group, without order, failure or reductions: what MPI has to give.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace trireme::comm {

/// A set of transfers under way. Messages between two ranks with one tag arrive in the order of their sends;
/// the two sides of a message have equal sizes. Buffers stay where they are until done() or abandon().
class Transfers {
 public:
  static constexpr int kAnyRank = -1;

  virtual ~Transfers() = default;
  virtual void send(ConstBytes data, int to, int tag) = 0;
  /// Is not done before `to` has begun to take the bytes.
  virtual void send_until_taken(ConstBytes data, int to, int tag) = 0;
  virtual void receive(Bytes data, int from, int tag) = 0;
  /// Moves bytes on; true when all transfers are complete, and the set is empty again.
  virtual bool done() = 0;
  /// Gives up what is under way: receives end before this returns if the system lets them.
  virtual void abandon() = 0;
};

/// A group of ranks that can reach each other. Transfers may be made and moved on from any thread.
class Link {
 public:
  virtual ~Link() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::unique_ptr<Transfers> transfers() = 0;
  /// Ranks with the same colour (not negative) form a group, ordered by key and then by rank. Collective, and
  /// waits for ever for a rank that does not come.
  virtual std::unique_ptr<Link> split(int color, int key) = 0;
  /// The group failed: what it holds in the system is left there.
  virtual void give_up() = 0;
};

/// A process's part in MPI.
class MpiProcess {
 public:
  virtual ~MpiProcess() = default;
  /// All ranks of the job, over a group of its own. Collective.
  virtual std::unique_ptr<Link> open() = 0;
  /// Without it the destructor leaves MPI as it is, and the launcher sees a process that ended without it.
  virtual void finalize() = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
};

/// Starts MPI in this process. Throws unsupported in a program built without MPI.
std::unique_ptr<MpiProcess> start_mpi();

}  // namespace trireme::comm

// Internal to the HTTP server: the connections of one event loop, the turns they take, and their burial.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <vector>

#include "http/loop_connection.h"

namespace trireme::http {

/// Touched on its loop's thread only. Invariant: each list has room for every connection, and a connection is
/// in each at most once, so that asking for a turn and closing never allocate.
class ConnectionList {
 public:
  bool empty() const { return connections_.empty(); }
  size_t size() const { return connections_.size(); }

  /// Room for one more connection in every list. Before add(), which then cannot fail.
  void make_room();
  LoopConnection& add(std::unique_ptr<LoopConnection> connection);

  /// One connection's turn. What it throws (there is no memory left) ends that connection; the others go on.
  template <class Turn>
  static void take_turn(LoopConnection& connection, const Turn& turn) {
    try {
      turn();
    } catch (const std::exception&) {
      connection.close();
    }
  }
  /// Queues an advance() of the connection.
  void revisit(LoopConnection& connection);
  bool has_revisits() const { return !revisits_.empty(); }
  /// One round: what is queued during it waits for the next, so that sockets are looked at in between.
  void handle_revisits();
  void check_deadlines();

  /// A closed connection is deleted by the next bury(): until then events of this turn may name it.
  void retire(LoopConnection& connection) { retired_.push_back(&connection); }
  /// Gives the number of those that it deleted.
  size_t bury();
  void close_all();

 private:
  std::vector<std::unique_ptr<LoopConnection>> connections_;
  std::vector<LoopConnection*> revisits_, revisiting_, retired_;
};

}  // namespace trireme::http

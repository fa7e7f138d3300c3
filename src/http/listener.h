// Internal to the HTTP server: the listening socket; who is accepted and who is turned away.
#pragma once

#include <functional>
#include <optional>

#include "http/descriptor.h"
#include "http/shared.h"

namespace trireme::http {

/// Belongs to the loop that accepts.
class Listener {
 public:
  /// `fd` listens, without blocking.
  Listener(Shared& shared, Descriptor fd);

  int fd() const { return fd_.get(); }
  /// Hands at most `most` of the connections that wait to `place`, counted as open; who is over the limit is
  /// refused. Level-triggered readiness tells of the rest again: however fast clients come, the loop's
  /// connections have their turn.
  void accept(int most, const std::function<void(Descriptor)>& place);

 private:
  void refuse(int fd);
  bool turn_one_away();

  Shared& shared_;
  Descriptor fd_;
  std::optional<Descriptor> spare_;  // see turn_one_away()
};

}  // namespace trireme::http

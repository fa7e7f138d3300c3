// Gives the machine back what the allocator keeps and nobody has used for a while.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace trireme::serve {

/// A burst of large requests leaves its memory with the allocator, in the heap of each thread that took part.
/// Memory that stayed unused at every look within ten seconds goes back; a steady load keeps what it works
/// with.
class IdleMemory {
 public:
  /// Call about as often as once a second, or more; between two looks a second passes. Costs microseconds,
  /// where memory goes back milliseconds. Returns whether it did.
  bool look(int64_t now_ns);

 private:
  int64_t next_look_ns_ = 0, window_ends_ns_ = 0;
  size_t least_free_ = std::numeric_limits<size_t>::max();  // in this window
  size_t returned_ = 0;                                     // free for the allocator, but not held any more
};

}  // namespace trireme::serve

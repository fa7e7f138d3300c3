// Lets answers out in the order in which their requests came, for models that ask for it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "sched/request.h"

namespace trireme::sched {

/// One line for each priority level: a request of a high level never waits for the answer of a low one. Any
/// thread; sinks are called without a lock held, in order, by whichever thread brought the missing answer.
class OrderedRelease {
 public:
  using Sink = std::function<void(Outcome&&)>;
  /// Gives the request the next place of its level, and a sink that waits for those before it. The sink keeps
  /// what it needs alive.
  Sink place(uint32_t level, Sink sink);

 private:
  struct Entry {
    Sink sink;
    bool is_done = false;
    Outcome outcome;
  };
  struct Line {
    std::mutex mutex;
    std::map<uint64_t, Entry> entries;  ///< placed and not let out, by place
    uint64_t next_place = 0;
    bool is_letting_out = false;  ///< a thread is calling sinks; it will see what comes meanwhile
  };
  static void finish(Line& line, uint64_t place, Outcome&& outcome);

  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<Line>> lines_;
};

}  // namespace trireme::sched

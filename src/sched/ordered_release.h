// Lets answers out in the order in which their requests came, for models that ask for it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "sched/request.h"

namespace trireme::sched {

/// Answers of one level, in the order of their places. Any thread; what takes them is called without a lock
/// held, one at a time, by whichever thread brought the missing answer.
class AnswerLine {
 public:
  using Take = std::function<void(Outcome&&)>;
  /// The next place. Memory for its answer is there from now on.
  uint64_t join();
  /// The answer of a place, and who takes it when its turn comes.
  void tell(uint64_t place, Take&& take, Outcome&& outcome);

 private:
  struct Entry {
    Take take;
    bool is_done = false;
    Outcome outcome;
  };
  std::mutex mutex_;
  std::map<uint64_t, Entry> entries_;  ///< placed and not let out, by place
  uint64_t next_place_ = 0;
  bool is_letting_out_ = false;  ///< a thread is calling; it will see what comes meanwhile
};

/// One line for each priority level: a request of a high level never waits for the answer of a low one. Any
/// thread.
class OrderedRelease {
 public:
  /// Gives the request the next place of its level. The sink keeps what it needs alive.
  void place(uint32_t level, Sink& sink);

 private:
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<AnswerLine>> lines_;
};

}  // namespace trireme::sched

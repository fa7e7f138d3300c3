// The batch that one instance runs, as a watchdog sees it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "sched/request.h"

namespace trireme::sched {

/// When the batch under way is of no use any more or counts as hung, and who waits for it then. The mutex of
/// its owner guards it.
class BatchWatch {
 public:
  /// Who waits for a request that runs: the watchdog may answer in the run's place.
  struct Unanswered {
    Sink sink;
    Timing timing;
  };
  /// A batch begins. Past `useless_ns` (0: never) nobody wants its answers.
  void begin(std::vector<Unanswered>&& unanswered, int64_t hangs_ns, int64_t useless_ns) {
    unanswered_ = std::move(unanswered);
    hangs_ns_ = hangs_ns;
    useless_ns_ = useless_ns;
  }
  /// It ends. True: it had been given up.
  bool end() {
    unanswered_.clear();
    hangs_ns_ = useless_ns_ = 0;
    return std::exchange(is_hung_, false);
  }

  /// True once, when its answers have become useless.
  bool becomes_useless(int64_t now_ns) {
    if (useless_ns_ == 0 || now_ns < useless_ns_) return false;
    useless_ns_ = 0;
    return true;
  }
  bool is_overdue(int64_t now_ns) const { return !is_hung_ && hangs_ns_ != 0 && now_ns >= hangs_ns_; }
  /// It counts as hung until it ends. Gives those who wait for it.
  std::vector<Unanswered> give_up() {
    is_hung_ = true;
    return std::exchange(unanswered_, {});
  }
  bool is_hung() const { return is_hung_; }
  /// When one of these may change; INT64_MAX: it need not be looked at.
  int64_t next_look_ns() const {
    const int64_t hangs_ns = is_hung_ || hangs_ns_ == 0 ? INT64_MAX : hangs_ns_;
    return useless_ns_ == 0 ? hangs_ns : std::min(hangs_ns, useless_ns_);
  }

 private:
  std::vector<Unanswered> unanswered_;
  int64_t hangs_ns_ = 0;    ///< when it counts as hung; 0: nobody watches it
  int64_t useless_ns_ = 0;  ///< when nobody wants its answers any more: then it is told to end; 0: never
  bool is_hung_ = false;
};

}  // namespace trireme::sched

// The batch that one instance runs, as a watchdog sees it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/run_stop.h"
#include "sched/request.h"

namespace trireme::sched {

/// When the batch under way is of no use any more, is to end its loops or counts as hung, and who waits for
/// it. The mutex of its owner guards it.
class BatchWatch {
 public:
  /// Who waits for a request that runs: the watchdog may answer in the run's place.
  struct Unanswered {
    Sink sink;
    Timing timing;
  };
  struct Limits {
    int64_t hangs_ns = 0;    ///< it counts as hung from then on; 0: never
    int64_t useless_ns = 0;  ///< past this nobody wants its answers; 0: they are always of use
    int64_t loops_ns = 0;    ///< its loops end then; 0: when they are through
    /// By request, true once its client has left; empty: nobody asks. An empty function: it never leaves.
    std::vector<std::function<bool()>> has_left = {};
  };
  /// How often clients are asked whether they are still there.
  static constexpr int64_t kAskNs = base::kNsPerSecond / 4;

  /// A batch begins.
  void begin(std::vector<Unanswered>&& unanswered, Limits&& limits, int64_t now_ns) {
    unanswered_ = std::move(unanswered);
    limits_ = std::move(limits);
    ask_ns_ = limits_.has_left.empty() ? 0 : now_ns + kAskNs;
  }
  /// The instance goes on with one request of the batch alone, to which these limits apply. Gives why that is
  /// not to run either.
  engine::StopReason renew(Limits&& limits, int64_t now_ns) {
    limits_ = std::move(limits);
    ask_ns_ = limits_.has_left.empty() ? 0 : now_ns;
    return look(now_ns);
  }
  /// It ends. True: it had been given up.
  bool end() {
    unanswered_.clear();
    limits_ = {};
    ask_ns_ = 0;
    return std::exchange(is_hung_, false);
  }

  /// Why the run is to end, told once for each reason.
  engine::StopReason look(int64_t now_ns) {
    if (limits_.useless_ns != 0 && now_ns >= limits_.useless_ns) return stops(engine::StopReason::late);
    if (ask_ns_ != 0 && now_ns >= ask_ns_) {
      ask_ns_ = now_ns + kAskNs;
      const bool is_alone = std::all_of(limits_.has_left.begin(), limits_.has_left.end(),
                                        [](const auto& has_left) { return has_left && has_left(); });
      if (is_alone) return stops(engine::StopReason::abandoned);
    }
    if (limits_.loops_ns == 0 || now_ns < limits_.loops_ns) return engine::StopReason::none;
    limits_.loops_ns = 0;
    return engine::StopReason::rounds;
  }
  bool is_overdue(int64_t now_ns) const {
    return !is_hung_ && limits_.hangs_ns != 0 && now_ns >= limits_.hangs_ns;
  }
  /// It counts as hung until it ends. Gives those who wait for it.
  std::vector<Unanswered> give_up() {
    is_hung_ = true;
    stops(engine::StopReason::hangs);
    return std::exchange(unanswered_, {});
  }
  bool is_hung() const { return is_hung_; }
  /// When one of these may change; INT64_MAX: it need not be looked at.
  int64_t next_look_ns() const {
    int64_t next_ns = INT64_MAX;
    for (const int64_t ns : {is_hung_ ? 0 : limits_.hangs_ns, limits_.useless_ns, limits_.loops_ns, ask_ns_})
      if (ns != 0) next_ns = std::min(next_ns, ns);
    return next_ns;
  }

 private:
  /// The whole run ends, so there is no further reason to look for.
  engine::StopReason stops(engine::StopReason reason) {
    limits_.useless_ns = limits_.loops_ns = ask_ns_ = 0;
    return reason;
  }

  std::vector<Unanswered> unanswered_;
  Limits limits_;
  int64_t ask_ns_ = 0;  ///< when clients are asked next; 0: never
  bool is_hung_ = false;
};

}  // namespace trireme::sched

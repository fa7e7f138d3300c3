// When work that may wait, and whose runs cannot stand still for clients, begins beside them: hardly noticed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::sched {

/// The priority of work that runs in what others leave: it never shares a batch with them, and begins only
/// when none of them waits or runs.
inline constexpr uint32_t kBackgroundPriority = UINT32_MAX;

/// For batches that cannot be interrupted (others: IdleWork): a client that comes while one runs waits for
/// its end. Three bounds keep that out of the clients' 99th percentile. A batch as short as a sixteenth of
/// what an answer usually takes may begin at once. Any batch may begin after a silence of five times the
/// usual time between two requests, which less than one gap in a hundred lasts where requests come
/// independently of one another (exp(-5)). And one request alone may begin when it is 64 times as long since
/// the last batch ended as that took: less than two clients in a hundred meet one, and no steady traffic
/// holds the work up for ever. Pure functions of the times that it is told. Not for several threads at once.
class BackgroundShare {
 public:
  /// A client's request came.
  void arrived(int64_t now_ns);
  /// A client's request was answered, so long after it came.
  void answered(int64_t latency_ns);

  /// So many requests of kBackgroundPriority began to run, or ended.
  void began(size_t requests) { running_ += requests; }
  void ended(size_t requests) { running_ -= requests; }
  /// A batch of them took so long.
  void ran(int64_t now_ns, int64_t took_ns);
  size_t running() const { return running_; }

  struct Leave {
    int64_t most_ns = 0;      ///< that a batch which begins now may take; INT64_MAX: any
    bool may_be_one = false;  ///< one request may run, however long it takes
    int64_t next_ns = 0;      ///< when there is more leave
  };
  Leave at(int64_t now_ns) const;

 private:
  size_t running_ = 0;
  int64_t rests_until_ns_ = 0;  ///< from when on one request may run
  int64_t last_ns_ = 0;         ///< of the last arrival; 0: none yet
  double gap_ns_ = 0;           ///< usual time between two; 0: not known yet
  double latency_ns_ = 0;       ///< usual; 0: not known yet
};

}  // namespace trireme::sched

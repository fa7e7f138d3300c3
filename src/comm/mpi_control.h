// The talk of an MPI world beside its collectives: failures, what ranks do when one waits too long, the end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/flight_recorder.h"
#include "comm/link.h"
#include "comm/mpi.h"

namespace trireme::comm {

/// What ended a world, as every process learns it.
struct Failure {
  int rank = 0;       // who met it
  bool gone = false;  // that rank's own error, which the others see as its absence
  base::ErrorCode code = base::ErrorCode::internal;
  std::string text;

  /// For operations of other ranks: "rank 1 is gone: no memory left", unavailable; or the failure itself.
  base::Error as_met() const;
  /// For who ran the world: "rank 1: no memory left" with its own code.
  base::Error cause() const;
};

/// One group as the control thread knows it.
struct GroupRecord {
  uint64_t id;                   // equal on all members
  std::vector<int> world_ranks;  // [size]
  FlightRecorder flights;        // of this rank
};

/// A thread a process that exchanges letters with the other processes' over a link of its own: it makes
/// failures known, answers for a rank that is busy, and asks around when an operation of this rank is
/// overdue.
class MpiControl {
 public:
  MpiControl(std::unique_ptr<Link> link, MpiOptions options);
  int64_t deadline_ns() const { return options_.deadline_ns; }
  ~MpiControl();
  MpiControl(const MpiControl&) = delete;
  MpiControl& operator=(const MpiControl&) = delete;

  void add(const std::shared_ptr<GroupRecord>& group);

  /// Ends the world for all ranks; the first failure that a process learns of counts there.
  void fail(Failure failure);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::optional<Failure> failure() const;
  [[noreturn]] void throw_failure() const;

  /// Says goodbye and waits for the others to do so, no longer than `limit_ns`; then ends the thread. True if
  /// all did: nothing of this world is under way any more.
  bool leave(int64_t limit_ns);

 private:
  struct Letter;
  struct Posted;
  struct Inquiry;

  void work();
  void post(const Letter& letter, int to);
  void post_all(const Letter& letter);
  void handle(const Letter& letter);
  void answer(const Letter& question);
  void look_for_overdue();
  void conclude(const GroupRecord& group, const Inquiry& inquiry);
  std::vector<std::shared_ptr<GroupRecord>> groups() const;
  bool sent();

  base::SystemClock clock_;
  std::unique_ptr<Link> link_;
  MpiOptions options_;
  std::atomic<bool> failed_{false};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<Failure> failure_;
  bool announce_ = false;  // failure_ is this process's own and not posted yet
  bool leaving_ = false;
  int64_t leave_by_ns_ = 0;
  std::vector<std::weak_ptr<GroupRecord>> groups_;

  // Of the thread alone.
  std::list<Posted> posted_;
  std::map<uint64_t, Inquiry> inquiries_;  // by group
  bool said_goodbye_ = false;
  int goodbyes_ = 0;
  bool clean_ = false;
  std::thread thread_;
};

}  // namespace trireme::comm

// Writes checkpoints while training goes on: a copy into staging memory, then a thread on each rank that
// writes; the leader's commits and prunes.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/threads/bounded_queue.h"
#include "base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/ranks/ranks.h"

namespace trireme::train {

struct CheckpointWriterOptions {
  std::string root;          ///< the folder of the step-… directories
  int keep = 2;              ///< the newest so many stay; 0: all
  int keep_best = 1;         ///< and so many with the highest scores
  bool asynchronous = true;  ///< false: save() returns when it is on the disk
  int64_t resumed_step = std::numeric_limits<int64_t>::max();  ///< later ones are of an abandoned past
};

/// What became of one save().
struct CheckpointOutcome {
  int64_t step = 0;
  WriteResult written;     ///< path and bytes, if committed
  bool committed = false;  ///< readers find it
  double seconds = 0;      ///< from save() until it was seen to be over
  /// Why it was not committed; of a committed one, why a pointer was not written or an old one not removed.
  std::optional<base::Error> error;
};

/// One owner thread. At most one checkpoint is in flight: a second save() waits for the first, so that the
/// staging memory is that of one checkpoint.
///
/// Every rank writes its own pieces to its own files. Their threads say nothing to each other: the owners
/// meet in poll() and wait(), which are collective, and once all files are flushed the leader commits them
/// with everybody's checksums. A failure on any rank commits nothing and is the outcome on every rank.
class CheckpointWriter {
 public:
  /// The leader removes what an earlier process left half-written under the root.
  CheckpointWriter(CheckpointWriterOptions options, FileOps& files, Ranks ranks = {});
  /// Waits for this rank's write in flight; among several ranks what wait() did not see is not committed.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Copies this rank's pieces (they may change afterwards) and hands them to the writing thread. Of `head`
  /// step and meta count, the leader's. `score`: higher is better, NaN if unknown. Gives the outcome of the
  /// save before, if nobody asked for it yet. Throws exhausted without memory for the copies.
  std::optional<CheckpointOutcome> save(const Checkpoint& head, const std::vector<CheckpointPiece>& pieces,
                                        double score = NAN);
  /// The outcome of the last save if it is done, without waiting.
  std::optional<CheckpointOutcome> poll();
  /// The outcome of the last save, waiting for it; none if it was given already.
  std::optional<CheckpointOutcome> wait();

 private:
  using Pieces = std::vector<CheckpointPiece>;
  enum class Phase : uint8_t { idle, writing, committing };
  struct Job {
    Phase phase = Phase::writing;
    Checkpoint head;
    Pieces staging;
    std::vector<WrittenPart> parts = {};  // of all ranks, to commit
    double score = NAN;
  };
  struct Done {
    CheckpointOutcome outcome;
    WrittenPart part = {};
    Pieces staging = {};  // comes back for the next copy
  };
  struct Kept {
    std::string name;
    double score;
  };
  void work();
  Done run(const Job& job);
  void keep(const Job& job, bool has_pointer);
  std::optional<base::Error> prune(const std::string& needed);
  void remove(const std::string& name);
  bool is_alone() const { return ranks_.size() == 1; }
  bool take_done(bool waits);
  std::optional<CheckpointOutcome> advance();
  std::optional<CheckpointOutcome> end_of_writing();
  CheckpointOutcome end_of_commit();
  CheckpointOutcome end(CheckpointOutcome outcome);
  CheckpointOutcome first_failure(const CheckpointOutcome& own) const;

  CheckpointWriterOptions options_;
  FileOps& files_;
  Ranks ranks_;
  std::vector<Kept> kept_;  // oldest first; only the leader's writing thread touches it after construction
  std::vector<std::string> doomed_;  // to be removed, if need be with the next commit; likewise
  Pieces staging_;                   // memory of the last copy, while nothing is in flight
  Phase phase_ = Phase::idle;
  Checkpoint head_;          // of the save in flight
  double score_ = NAN;       // of it
  int64_t started_ns_ = 0;   // of it
  std::optional<Done> own_;  // what this rank's thread came back with in this phase
  base::BoundedQueue<Job> jobs_{1};
  base::BoundedQueue<Done> done_{1};
  std::thread thread_;
};

}  // namespace trireme::train

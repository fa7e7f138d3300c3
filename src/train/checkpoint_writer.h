// Writes checkpoints while training goes on: a copy into staging memory, then a thread that writes and
// prunes.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/error.h"
#include "train/checkpoint.h"

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
  WriteResult written;               ///< path and bytes, if committed
  bool committed = false;            ///< readers find it
  double seconds = 0;                ///< of writing, in the background
  std::optional<base::Error> error;  ///< why it was not committed, or why old ones could not be removed
};

/// One owner thread. At most one checkpoint is in flight: a second save() waits for the first, so that the
/// staging memory is that of one checkpoint.
class CheckpointWriter {
 public:
  /// Removes what an earlier process left half-written under the root.
  CheckpointWriter(CheckpointWriterOptions options, FileOps& files);
  /// Waits for the write in flight.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Memory the copies take: state this before training starts.
  static int64_t staging_bytes(const model::NamedTensors& tensors);

  /// Copies the tensors (they may change afterwards) and hands them to the writing thread. `score`: higher is
  /// better, NaN if unknown. Gives the outcome of the save before, if nobody asked for it yet. Throws
  /// exhausted without memory for the copies.
  std::optional<CheckpointOutcome> save(const Checkpoint& checkpoint, double score = NAN);
  /// The outcome of the last save if it is done, without waiting.
  std::optional<CheckpointOutcome> poll();
  /// The outcome of the last save, waiting for it; none if it was given already.
  std::optional<CheckpointOutcome> wait();

 private:
  struct Job {
    Checkpoint staging;
    double score = NAN;
  };
  struct Done {
    CheckpointOutcome outcome;
    Checkpoint staging;  // comes back for the next copy
  };
  struct Kept {
    std::string name;
    double score;
  };
  void work();
  CheckpointOutcome write(const Job& job);
  void prune();
  void remove(const std::string& name);
  CheckpointOutcome take(Done done);

  CheckpointWriterOptions options_;
  FileOps& files_;
  std::vector<Kept> kept_;  // oldest first; only the writing thread touches it after construction
  Checkpoint staging_;      // memory of the last copy, while nothing is in flight
  bool in_flight_ = false;
  base::BoundedQueue<Job> jobs_{1};
  base::BoundedQueue<Done> done_{1};
  std::thread thread_;
};

}  // namespace trireme::train

// What the launcher knows of a training run: its layout, its checkpoints, and when it runs again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/config/train_config.h"

namespace trireme::cli {

/// The words after `trireme train`, and the run they describe.
class LaunchedTraining {
 public:
  explicit LaunchedTraining(std::vector<std::string> words);

  int ranks() const { return config_.parallel.world(); }
  /// The words or the file say how many data-parallel ranks there are.
  bool has_dp() const { return config_.parallel.dp > 1; }
  /// The largest number of ranks, at most `most`, that the run can be spread over by another dp alone; 0 if
  /// there is none: dp has to divide the batch.
  int ranks_that_fit(int most) const;
  /// The words for so many ranks; those of a restart if `again`: from the newest checkpoint if there is one,
  /// but as they were given if they name another one and this launch has committed none yet.
  std::vector<std::string> words(int ranks, bool again) const;

  /// When a checkpoint was committed (wall clock), and its step.
  struct Checkpoint {
    int64_t wall_ns = 0;
    int64_t step = 0;
    bool operator==(const Checkpoint&) const = default;
  };
  /// The checkpoint that a restart goes on from; nothing: it begins anew.
  std::optional<Checkpoint> restart_point() const;

  /// Looks at the log before the run is started again, so that has_restarted() can tell when it has begun.
  void expect_restart();
  bool has_restarted() const;

 private:
  struct LogView {
    uint64_t file = 0;   // inode: a resumed run replaces the log
    int64_t starts = 0;  // events "start" up to the checkpoint's step
  };
  LogView look(int64_t up_to_step) const;
  std::optional<Checkpoint> newest() const;
  bool goes_on_from_given() const;

  std::vector<std::string> given_;
  std::string resume_;  // what the words resume from
  train::TrainConfig config_;
  std::optional<Checkpoint> first_newest_;  // as the launch found the run directory
  LogView before_;
  int64_t resumed_step_ = 0;
};

}  // namespace trireme::cli

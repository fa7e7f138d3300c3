// The states of a rank's session as parts of logical tensors: what of them the rank writes into a checkpoint,
// and what it takes from one.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/train/state_store.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/ranks/ranks.h"

namespace trireme::train {

/// Every box of every logical tensor has one writer: of ranks that hold the same the first one, on each axis
/// of the mesh. A rank of a pipeline holds the states of its stage only.
class RankStates {
 public:
  /// Collective, once all states exist.
  RankStates(engine::StateStore& states, const Ranks& ranks);

  /// What this rank writes. Contents share the states' bytes where a rank's part is one box: use them before
  /// the next step.
  std::vector<CheckpointPiece> pieces() const;
  /// Bytes of pieces().
  int64_t bytes() const;
  /// Throws invalid_argument unless the checkpoint holds the states of this run, no more and no less, on all
  /// ranks together.
  void check(const CheckpointReader& checkpoint) const;
  /// Overwrites this rank's states with its boxes of the checkpoint's tensors.
  void load(const CheckpointReader& checkpoint);

 private:
  struct Held {
    std::string name;
    tensor::Dims dims;  // of the whole
    std::vector<tensor::Box> boxes;
    bool is_mine = false;  // to write
  };
  bool is_first_holder(const std::string& name, const tensor::Shard& shard) const;

  engine::StateStore& states_;
  const Ranks& ranks_;
  std::vector<Held> held_;          // in the order of their names
  std::set<std::string> anywhere_;  // names that some rank holds
  std::set<std::string> earlier_;   // names that an earlier stage holds
};

}  // namespace trireme::train

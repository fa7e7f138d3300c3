// The states of a rank's session as parts of logical tensors: what of them the rank writes into a checkpoint,
// and what it takes from one.
#pragma once

#include <map>
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
  /// Collective, once all states exist. `frozen`: parameters that no rank trains, whole on every rank; those
  /// among them that are states of some rank do not count. `writes_frozen`: pieces() has them too.
  RankStates(engine::StateStore& states, const Ranks& ranks, const model::NamedTensors& frozen = {},
             bool writes_frozen = false);

  /// What this rank writes. Contents share the states' bytes where a rank's part is one box: use them before
  /// the next step.
  std::vector<CheckpointPiece> pieces() const;
  /// Bytes of pieces().
  int64_t bytes() const;
  /// Throws invalid_argument unless the checkpoint holds the states of this run, no more and no less, on all
  /// ranks together, and frozen parameters, if any, as they are here.
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
  void check_frozen(const CheckpointReader& checkpoint) const;

  engine::StateStore& states_;
  const Ranks& ranks_;
  std::vector<Held> held_;          // in the order of their names
  std::set<std::string> anywhere_;  // names that some rank holds
  std::set<std::string> earlier_;   // names that an earlier stage holds
  std::map<std::string, tensor::Tensor> frozen_;
  bool writes_frozen_;  // on this rank
};

}  // namespace trireme::train

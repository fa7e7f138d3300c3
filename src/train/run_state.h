// Where a run stands besides its tensors: the part of a checkpoint that is small.
#pragma once

#include <cstdint>
#include <string>

#include "base/text/json.h"

namespace trireme::train {

/// Steps are counted from 1 when they begin. A skipped step moves the data on but neither the learning rate
/// nor the optimizer's count (training contract C12).
struct RunState {
  int64_t step = 0;       ///< begun, skipped ones included
  int64_t executed = 0;   ///< updates made
  int64_t samples = 0;    ///< consumed, all epochs
  int64_t scheduled = 0;  ///< samples of executed steps: what the schedule counts
  int64_t targets = 0;    ///< valid targets seen
  int64_t epoch = 0;      ///< data position: pass over the data,
  int64_t consumed = 0;   ///< and samples of it taken
  int64_t skips_in_row = 0;

  base::Json to_json() const;
  /// Throws invalid_argument for a missing or negative count.
  static RunState from_json(const base::Json& json);
  bool operator==(const RunState&) const = default;
};

}  // namespace trireme::train

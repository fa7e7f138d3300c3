// How many ranks hold a model that is run or served, as options and as the strategy file that training takes.
#pragma once

#include <string>

#include "base/text/options.h"
#include "passes/strategy.h"

namespace trireme::engine {

struct InferenceRanks {
  int tp = 0, pp = 0;    ///< 0: as the strategy file says, else 1
  int ep = 0;            ///< 0: as the strategy file says, else 1; alone it is tp, too
  std::string strategy;  ///< file

  void fields(base::OptionList& f);
  /// Of a strategy for training only what concerns one copy of the model counts: dp, zero, sequence and the
  /// schedule become those of one, and the parts that a stage holds become neighbours.
  passes::Strategy read() const;
};

}  // namespace trireme::engine

// What the rounds of one run of a loop read and no round computes: constants, rows, and what rows decide.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/session/graph_runner.h"
#include "engine/session/stacked_rounds.h"
#include "lower/loop_form.h"

namespace trireme::engine {

/// One call of a loop.
struct LoopCall {
  std::vector<tensor::Tensor>
      operands;               ///< by the body's input; undefined for iteration number and condition
  int64_t trips = INT64_MAX;  ///< at most so many rounds
  std::vector<StackedLayout> stacked = {};  ///< by scanned result: axes and directions
};

/// a + b * n as the operators compute it: what does not fit wraps.
int64_t wrapped_sum(int64_t a, int64_t b, int64_t n);

/// Follows the counters of a loop from round to round. All that it is given outlives it.
class LoopReads {
 public:
  LoopReads(const lower::LoopForm& form, GraphRunner& before, GraphRunner& lifted, const LoopCall& call,
            int64_t memory_bytes)
      : form_(form),
        before_runner_(before),
        lifted_runner_(lifted),
        call_(call),
        memory_bytes_(memory_bytes) {}

  /// Computes what is the same in all rounds. Returns false if a row that a part names does not exist.
  bool begin();
  /// So many rounds at most, or exactly where the form says so.
  int64_t rounds() const { return rounds_; }

  /// Goes to a round, the next one; computes values ahead where there are none for it.
  void reach(int64_t round);
  /// An input of kind operand, before, slice or lifted in this round.
  tensor::Tensor tensor(const lower::RoundInput& input) const;
  /// Its address; `constant`: that of what is the same in every round. Throws invalid_argument for a row that
  /// does not exist.
  const void* address(const lower::RoundInput& input, const void* constant) const;

 private:
  /// In the first round.
  int64_t number(const lower::RoundNumber& n) const;
  const tensor::Tensor& constant(const lower::RoundConstant& c) const;
  void limit_rounds();
  void open_slices();
  bool rows_exist() const;
  int64_t row_of(size_t slice, int64_t round) const;
  void compute_ahead();
  tensor::Tensor ahead_input(const lower::RoundInput& input, int64_t rounds) const;

  const lower::LoopForm& form_;
  GraphRunner &before_runner_, &lifted_runner_;
  const LoopCall& call_;
  int64_t memory_bytes_;
  int64_t rounds_ = 0, round_ = 0;
  std::vector<int64_t> starts_;                            ///< of counters, by the body's input
  std::vector<tensor::Tensor> before_;                     ///< what is computed once
  std::vector<const tensor::Tensor*> rows_;                ///< by slice
  std::vector<int64_t> first_row_, row_step_, row_bytes_;  ///< by slice
  std::vector<tensor::Tensor> lifted_;                     ///< for rounds [ahead_begin_, ahead_end_)
  std::vector<int64_t> lifted_bytes_;                      ///< of one round
  int64_t ahead_begin_ = 0, ahead_end_ = 0, ahead_most_ = 0;
};

}  // namespace trireme::engine

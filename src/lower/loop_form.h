// The body of a loop in three parts: what is the same in every round, what rows of a sequence alone decide,
// and what has to wait for the round before.
#pragma once

#include <map>
#include <vector>

#include "lower/loop_counters.h"
#include "tensor/shape.h"

namespace trireme::lower {

/// A value that is the same in every round.
struct RoundConstant {
  enum class From : uint8_t { operand, before, known } from = From::known;
  size_t index = 0;      ///< of the body's input, or of the result of LoopForm::before
  tensor::Tensor value;  ///< if known
};

/// Round t reads row `at` of a value that is the same in every round.
struct RoundSlice {
  RoundConstant rows;
  RoundNumber at;
  bool is_scanned = false;  ///< a scan's operand: round t reads row t, or row length - 1 - t
  bool from_last = false;
  tensor::Dims dims;  ///< of one row
};

/// Where a part takes an input from. `index`: of the body's input for iteration, condition, state and
/// operand; else of LoopForm::slices or of the results of `lifted` or `before`.
struct RoundInput {
  enum class Kind : uint8_t { iteration, condition, state, operand, before, slice, lifted } kind;
  size_t index = 0;
};

/// What becomes of a carried value.
struct StateRule {
  enum class Kind : uint8_t { computed, unchanged, counted } kind = Kind::computed;
  int64_t step = 0;  ///< if counted: what each round adds
};

/// A limit of the number of rounds whose bound is at hand when the loop begins.
struct RoundBound {
  RoundNumber number;
  RoundConstant limit;
  bool or_equal = false;
};

struct LoopForm {
  /// Runs once, if there is a round at all. Empty if it has no outputs.
  ir::Graph before;
  std::vector<size_t> before_inputs;  ///< the body's inputs
  /// Computes for many rounds at once: its slices have the rows of all these rounds as their outermost
  /// dimension, and so have its results. Empty if it has no outputs.
  ir::Graph lifted;
  std::vector<RoundInput> lifted_inputs;  ///< slice, operand or before
  /// One round. Results: the condition if `has_condition`, the states that are computed, scanned values.
  ir::Graph round;
  std::vector<RoundInput> round_inputs;
  bool has_condition = false;
  std::vector<StateRule> states;
  std::vector<RoundSlice> slices;
  std::map<size_t, int64_t> steps;  ///< of counters, by the body's input
  std::vector<RoundBound> bounds;
  bool is_exact = false;  ///< trip count and bounds alone say how many rounds there are
  /// Some slices were parts x[n:n + 1], which outside of x are empty: only loops whose rows all exist have
  /// this form.
  bool needs_rows = false;
};

/// Whether rows that parts name may be taken to exist.
enum class LoopRows : uint8_t { exist, may_be_missing };

/// Forms the loop for body inputs that have these extents in the first round. Nothing is computed here.
LoopForm form_loop(const ir::Graph& body, const LoopSignature& signature,
                   const std::vector<tensor::Dims>& shapes, LoopRows rows);

/// The body with the extents that hold in every round: those that a round may change are open.
ir::Graph bind_every_round(const ir::Graph& body, const LoopSignature& signature,
                           const std::vector<tensor::Dims>& shapes);

}  // namespace trireme::lower

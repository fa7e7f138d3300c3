// Whole numbers of a loop's body that follow from the number of the round, and the bounds that conditions on
// them put on the number of rounds.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace trireme::lower {

/// How a control node feeds its body: `loop` gives (iteration, condition, states, captures) and takes
/// (condition, states, scanned); `scan` gives (states, slices, captures) and takes (states, scanned).
struct LoopSignature {
  bool is_scan = false;
  size_t states = 0;
  size_t slices = 0;                 ///< operands of a scan that each round reads one row of
  std::vector<bool> from_last = {};  ///< by slice: the rows are read from the last to the first

  size_t first_state() const { return is_scan ? 0 : 2; }
  size_t first_state_result() const { return is_scan ? 0 : 1; }
  size_t first_slice() const { return first_state() + states; }
  size_t first_capture() const { return first_slice() + slices; }
  bool is_state(size_t input) const { return input >= first_state() && input < first_slice(); }
};

/// start + step * round + offset: the start and the step are those of a counter.
struct RoundNumber {
  size_t counter = 0;  ///< the body's input that counts: the iteration number, or a state
  int64_t offset = 0;
};

/// Finds numbers that count rounds: the iteration number, states to which each round adds the same number,
/// and what differs from them by a constant.
class LoopCounters {
 public:
  /// The body outlives the counters.
  LoopCounters(const ir::Graph& body, const LoopSignature& signature);

  /// The number that a value of one element is in every round.
  std::optional<RoundNumber> number(ir::ValueId id) const;
  /// What each round adds to an input of the body; none if it does not count.
  std::optional<int64_t> step(size_t input) const;

 private:
  /// number() by counters of which it may not be known yet that they count.
  std::optional<RoundNumber> follow(ir::ValueId id, int depth) const;
  std::optional<int64_t> constant(ir::ValueId id) const;

  const ir::Graph& body_;
  std::map<ir::ValueId, size_t> inputs_;  ///< numbers of one element
  std::map<size_t, int64_t> steps_;
};

/// The rounds go on after this one only while `number`, as a value of the limit's type, is below `limit` (or
/// equal to it).
struct RoundLimit {
  RoundNumber number;
  ir::ValueId limit = ir::kNoValue;
  bool or_equal = false;
};

/// What a loop's condition says of the number of rounds.
struct RoundLimits {
  std::vector<RoundLimit> limits;
  bool is_all = false;  ///< the condition holds exactly while all limits do
};

/// Reads a condition: limits joined by `and`. `is_same`: whether a value is the same in every round.
class ConditionReader {
 public:
  ConditionReader(const ir::Graph& body, const LoopCounters& counters, std::vector<bool> is_same)
      : body_(body), counters_(counters), is_same_(std::move(is_same)) {}
  /// `given`: the body's input that is true in every round that runs.
  RoundLimits read(ir::ValueId condition, ir::ValueId given) const;

 private:
  bool add(ir::ValueId id, ir::ValueId given, RoundLimits& out, int depth) const;
  bool add_limit(ir::ValueId number, ir::ValueId limit, bool or_equal, RoundLimits& out) const;

  const ir::Graph& body_;
  const LoopCounters& counters_;
  std::vector<bool> is_same_;
};

}  // namespace trireme::lower

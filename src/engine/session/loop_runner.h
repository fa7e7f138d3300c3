// Runs the rounds of one loop: addresses are prepared, carried values change places, results are written
// where they stay.
#pragma once

#include <memory>
#include <vector>

#include "engine/session/loop_reads.h"

namespace trireme::engine {

/// A loop's body, formed and compiled for the extents that it meets.
class LoopRunner {
 public:
  /// `body` has gone through prepare_passes. The context outlives the runner.
  LoopRunner(ir::Graph body, lower::LoopSignature signature, RunnerContext& context);
  ~LoopRunner();

  /// States after the last round, then scanned results. Throws invalid_argument for data that the body does
  /// not take, exhausted if results outgrow the memory of the session.
  std::vector<tensor::Tensor> run(LoopCall call);
  int64_t folded_bytes() const;

 private:
  struct Formed;
  class Rounds;
  Formed& formed_for(const std::vector<tensor::Dims>& shapes, lower::LoopRows rows);
  void check_types(const LoopCall& call) const;
  std::vector<tensor::Dims> body_shapes(const LoopCall& call) const;
  std::vector<tensor::Tensor> without_rounds(const LoopCall& call) const;

  ir::Graph body_;
  lower::LoopSignature signature_;
  RunnerContext& context_;
  lower::ProgramCache<std::vector<tensor::Dims>, Formed> exact_rows_, any_rows_;
};

}  // namespace trireme::engine

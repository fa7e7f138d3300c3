// What a rank's training state costs in memory, by the program and by formula (training contract C11).
#pragma once

#include <string>
#include <vector>

#include "engine/train/train_session.h"

namespace trireme::engine {

/// Bytes of one rank between and during steps.
struct RankBytes {
  int64_t weights = 0;     ///< that forward and backward read; where they read 16-bit copies, the copies
  int64_t gradients = 0;   ///< partial sums over micro-batches; of a single one, its gradients in the arena
  int64_t optimizer = 0;   ///< moments, averages, and f32 masters of 16-bit copies
  int64_t statistics = 0;  ///< running statistics of batch norms, sums of them and of the loss
  int64_t arena = 0;       ///< activations, workspaces, and what is gathered for a while
  int64_t state() const { return weights + gradients + optimizer; }
  std::string text() const;
  bool operator==(const RankBytes&) const = default;
};

/// From the states and the plans of the compiled programs of a step.
RankBytes bytes_per_rank(TrainSession& session, const std::vector<tensor::Dims>& shapes,
                         size_t micro_batches);
/// From the memory that the session holds, without the arena; gradients only of several micro-batches.
RankBytes held_bytes(const TrainSession& session);

/// Elements of the parameters of a model.
struct ZeroElements {
  int64_t full = 0;   ///< read in f32
  int64_t low = 0;    ///< read in 16 bits only
  int64_t both = 0;   ///< read in f32 and in 16 bits: an embedding that is the head too
  int64_t whole = 0;  ///< read in f32 and not shared out: no dimension divides, or the update needs the whole
};
/// C11 for Adam with f32 gradients and one partial sum (two micro-batches): f32 16, 8 + 8/d, 4 + 12/d, 16/d
/// bytes an element for stages 0 to 3; 16 bits over f32 masters, with the copies that the update writes, 18,
/// 6 + 12/d, 2 + 16/d, 18/d. What is read both ways has a copy in stage 0 alone: later ones cast it.
RankBytes zero_bytes(const ZeroElements& elements, int stage, int ranks);

}  // namespace trireme::engine

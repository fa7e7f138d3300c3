// Pipeline schedules as data: what each stage does with which micro-batch in which order, and a simulation of
// it (training contract C5).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/strategy.h"

namespace trireme::passes {

/// forward and backward of one micro-batch through one part of the model. Zero bubble splits the backward:
/// the gradient of the part's input, which the stage before waits for, and that of its weights, which nobody
/// does.
enum class PipelineWork : uint8_t { forward, backward, input_gradient, weight_gradient };

struct PipelineAction {
  PipelineWork work = PipelineWork::forward;
  int micro_batch = 0;
  int chunk = 0;  ///< which of the stage's parts; chunk k of stage r is part k * stages + r of the model
  bool operator==(const PipelineAction&) const = default;
};

struct PipelineShape {
  int stages = 1;         ///< ranks along pp
  int micro_batches = 1;  ///< of one step on one data-parallel rank
  int chunks = 1;         ///< model parts on each stage
  int group = 0;          ///< interleaved: fewest micro-batches that pass a chunk before the next; 0: stages
  int parts() const { return stages * chunks; }
};

/// The actions of every stage in their order.
struct PipelineOrder {
  PipelineShape shape;
  std::vector<std::vector<PipelineAction>> of_stage;  ///< [stages]
};

/// gpipe: all forwards, then all backwards in the same order. one_f_one_b: at most stages - r micro-batches
/// in flight on stage r. interleaved: micro-batches in groups of nearly equal size, chunk after chunk.
/// zero_bubble (ZB-H1): 1F1B with the weight gradients of stage r delayed by r micro-batches, so that every
/// stage holds what stage 0 holds. Throws invalid_argument for sizes below 1 and for chunks where the
/// schedule has none.
PipelineOrder make_pipeline_order(PipelineSchedule kind, const PipelineShape& shape);

/// Forwards only, micro-batch after micro-batch: inference.
PipelineOrder make_inference_order(const PipelineShape& shape);

/// "F0 F1 B0": works are F, B, Bx (input gradient) and W (weight gradient), then micro-batch and, if there is
/// more than one, ".chunk".
std::string to_string(const std::vector<PipelineAction>& actions, int chunks);

/// How long work takes, in any unit.
struct PipelineTimes {
  struct Part {
    double forward = 1, backward = 2, input_gradient = 1, weight_gradient = 1;
    double of(PipelineWork work) const;
  };
  Part each = {};                ///< of every part
  std::vector<Part> parts = {};  ///< by part of the model, in place of `each`; empty: all are like `each`
  double send = 0;               ///< from one stage to another, beside the work of both
};

struct PipelineSimulation {
  double total = 0;                      ///< from the first start to the last end
  double bubble = 0;                     ///< share of total x stages in which a stage waits
  std::vector<double> busy;              ///< [stages] time at work
  std::vector<int> peak;                 ///< [stages] most parts' activations alive at once
  std::vector<std::vector<double>> end;  ///< [stages][actions] when each action ends
};

/// Plays the order: a forward waits for that of the part before, a backward for its own forward and the
/// backward of the part behind, a weight gradient for the input gradient. Activations live from the begin of
/// the forward to the end of the backward or weight gradient. Throws invalid_argument naming what each stage
/// waits for if they wait for each other.
PipelineSimulation simulate(const PipelineOrder& order, const PipelineTimes& times = {});

/// Most activations of one chunk of one stage alive at once: how many stashes the stage needs for it.
int peak_in_flight(const PipelineOrder& order, int stage, int chunk);

}  // namespace trireme::passes

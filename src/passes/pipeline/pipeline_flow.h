// What flows between pipeline stages under a schedule: the order of transfers on each link, and how many
// buffers keep it flowing.
#pragma once

#include <vector>

#include "passes/pipeline/pipeline_schedule.h"

namespace trireme::passes {

/// What one link carries, in order: results of the parts of `order.of_stage[stage]` on their way to the next
/// stage (gradients: to the stage before; stages are a ring where they hold several parts). The chunk is that
/// of the sender.
struct PipelineTransfer {
  int micro_batch = 0;
  int chunk = 0;
};
std::vector<PipelineTransfer> activation_transfers(const PipelineOrder& order, int stage);
std::vector<PipelineTransfer> gradient_transfers(const PipelineOrder& order, int stage);

/// Buffers of one chunk of a stage; micro-batch i uses buffer i modulo the number, and takes it over when the
/// one before is through.
struct PipelineSlots {
  int in = 1;   ///< arriving activations: one more than are in flight, so that the next can arrive early
  int out = 1;  ///< leaving activations
  int out_gradient = 1;  ///< arriving gradients
  int in_gradient = 1;   ///< leaving gradients
  int kept = 1;          ///< what forward keeps: the most micro-batches in flight
  int late = 1;          ///< what backward leaves to weight gradients
};

/// Fewest buffers with which no stage waits for ever, by [stage][chunk]; throws invalid_argument for an order
/// that cannot run at all.
std::vector<std::vector<PipelineSlots>> plan_pipeline_slots(const PipelineOrder& order);

}  // namespace trireme::passes

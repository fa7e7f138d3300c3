// Where a program on a device meets other ranks: on their communication stream, beside its computation.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device_ranks.h"
#include "runtime/device_timeline.h"
#include "runtime/executor.h"

namespace trireme::runtime {

/// Orders collectives after what they read and before what reads them, by events of both streams. A program
/// without collectives passes through it and only waits for its own stream.
class DeviceCollectives {
 public:
  /// What is given outlives it. `on.ranks` has the groups that the program meets.
  DeviceCollectives(const compile::Program& program, const DeviceBinding& on);

  bool has_any() const { return ready_ != nullptr; }
  bool can_record() const { return !has_any() || on_.ranks->can_record(); }
  comm::Mesh* mesh() const { return has_any() ? &on_.ranks->mesh() : nullptr; }
  /// The communication stream; only with collectives.
  cuda::CudaStream& stream() const { return on_.ranks->stream(); }

  /// Around a run; finish() waits for both streams, and throws what went wrong between ranks before its
  /// consequences here.
  void begin();
  void finish(tensor::Stream& compute);
  /// Launches a collective behind what `compute` has launched so far. `compute` waits at once where the step
  /// is in line, else where a step needs it. `args` are on stream().
  void run(size_t step, cuda::CudaStream& compute, const ir::RunArgs& args, DeviceTimeline* timeline);
  /// Before a step: waits for the collective aside that it needs.
  void wait_before(size_t step, tensor::Stream& compute, DeviceTimeline* timeline);
  /// After the last step: the computation ends after the last collective.
  void join(tensor::Stream& compute);
  /// After a failure: lets what is launched end, so that nothing of it is under way when memory goes.
  void give_up(tensor::Stream& compute);

 private:
  void wait_for(int step, tensor::Stream& compute, DeviceTimeline* timeline);

  const compile::Program& program_;
  const DeviceBinding& on_;
  std::unique_ptr<tensor::Event> ready_;             ///< what a collective's operands wait for
  std::vector<std::unique_ptr<tensor::Event>> met_;  ///< per step: a collective's end; null for others
  int last_met_ = -1;                                ///< of the present run: the collective launched last
};

}  // namespace trireme::runtime

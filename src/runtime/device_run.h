// Runs a program on a device whose memory is not the host's: launches its steps, records the launches and
// replays them.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/device_collectives.h"
#include "runtime/device_host_steps.h"
#include "runtime/device_operands.h"
#include "runtime/device_timeline.h"
#include "runtime/device_transfers.h"
#include "runtime/executor.h"

namespace trireme::runtime {

/// One program on one device; what Executor is made of where the program is not the CPU's.
class DeviceRun {
 public:
  /// `on.ranks` has the groups that the program meets.
  DeviceRun(const compile::Program& program, std::vector<void*> states, const DeviceBinding& on);

  /// The program's arena, followed by the places of its inputs and outputs.
  int64_t arena_bytes() const { return transfers_.arena_bytes(); }
  void bind_arena(void* arena);
  void run(std::span<const void* const> inputs, std::span<void* const> outputs, tensor::Stream& stream,
           Trace* trace);
  /// See Executor::launch() and check().
  void launch(std::span<const void* const> inputs, std::span<void* const> outputs, tensor::Stream& stream,
              size_t turn);
  void check_data();
  const Communication& communication() const { return communication_; }
  bool is_recorded() const { return recording_ != nullptr; }

 private:
  void begin(std::span<const void* const> inputs, std::span<void* const> outputs);
  ir::RunArgs args_of(size_t step, tensor::Stream& stream);
  void run_step(size_t step, tensor::Stream& stream, DeviceTimeline* timeline = nullptr);
  void compute(size_t step, tensor::Stream& stream);
  void launch_all(tensor::Stream& stream);
  void launch_timed(tensor::Stream& stream, std::span<const void* const> inputs,
                    std::span<void* const> outputs, Trace& trace);
  void launch_or_replay(tensor::Stream& stream);
  void record(tensor::Stream& stream);
  [[noreturn]] void explain(const base::Error& error, tensor::Stream& stream);
  [[noreturn]] void find_step(const base::Error& error, tensor::Stream& stream);
  std::array<int64_t, 2> take_fault();
  std::string step_text(size_t step) const;

  const compile::Program& program_;
  const DeviceBinding on_;
  DeviceTransfers transfers_;
  DeviceOperands operands_;
  DeviceHostSteps host_steps_;
  DeviceCollectives collectives_;
  std::byte* arena_ = nullptr;
  std::shared_ptr<void> fault_;                         ///< two words that kernels and the host see
  std::optional<ir::RunStatus> status_{std::in_place};  ///< of host steps
  std::unique_ptr<tensor::Recording> recording_;
  bool may_record_ = false, is_launching_ = false;
  int64_t runs_ = 0;
  size_t failed_step_ = 0;
  Communication communication_;
};

}  // namespace trireme::runtime

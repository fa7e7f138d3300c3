// Runs a program on a device whose memory is not the host's: constants uploaded once, inputs and results
// staged, launches recorded and replayed, steps without a device kernel run on the host.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/device/cpu_stream.h"
#include "base/memory/shared_cache.h"
#include "runtime/device_ranks.h"
#include "runtime/executor.h"
#include "runtime/staging.h"

namespace trireme::runtime {

/// One program on one device; what Executor is made of where the program is not the CPU's.
class DeviceRun {
 public:
  /// `on.ranks` has the groups that the program meets.
  DeviceRun(const compile::Program& program, std::vector<void*> states, const DeviceBinding& on);

  /// The program's arena, followed by the places of its inputs and outputs.
  int64_t arena_bytes() const { return outputs_at_ + out_bytes_; }
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
  struct Timeline;
  /// Memory of the device that a host step reads or writes, and its place in the host's.
  struct Moved {
    size_t argument = 0;  ///< index into addresses_
    int64_t at = 0;       ///< in Staging::host()
    int64_t bytes = 0;
    bool is_read = false, is_written = false;
  };
  /// A step that runs on the host. `from`: per operand and result an index into `moved`, or -1.
  struct HostStep {
    std::vector<Moved> moved;
    std::vector<int> from;
    std::vector<void*> fixed;  ///< per operand: the constant's content on the host
    int64_t workspace_at = 0;
  };

  void take_addresses(std::span<const void* const> inputs, std::span<void* const> outputs);
  void move_there(tensor::Stream& stream, std::span<const void* const> inputs, size_t turn = 0);
  void move_back(tensor::Stream& stream, std::span<void* const> outputs);
  void lay_out_arguments();
  void upload_constants();
  void plan_host_step(size_t step);
  void resolve(compile::SlotId id, size_t argument);
  void run_step(size_t step, tensor::Stream& stream, Timeline* timeline = nullptr);
  void run_collective(size_t step, cuda::CudaStream& stream, Timeline* timeline);
  void wait_aside(size_t step, tensor::Stream& stream, Timeline* timeline);
  void join(tensor::Stream& stream);
  void finish(tensor::Stream& stream);
  ir::RunArgs args_of(size_t step, tensor::Stream& stream);
  void run_host_step(size_t step, tensor::Stream& stream);
  void launch_all(tensor::Stream& stream);
  void launch_timed(tensor::Stream& stream, std::span<const void* const> inputs,
                    std::span<void* const> outputs, Trace& trace);
  void launch_or_replay(tensor::Stream& stream);
  void record(tensor::Stream& stream);
  void give_up(tensor::Stream& stream);
  [[noreturn]] void explain(const base::Error& error, tensor::Stream& stream);
  std::string step_text(size_t step) const;

  const compile::Program& program_;
  std::vector<void*> states_;
  DeviceBinding on_;
  std::unique_ptr<tensor::Event> ready_;             ///< what a collective's operands wait for
  std::vector<std::unique_ptr<tensor::Event>> met_;  ///< per step: a collective's end; null for others
  int last_met_ = -1;                                ///< of the present run: the collective launched last
  cpu::CpuStream host_stream_;
  std::vector<std::shared_ptr<const void>> constants_;  ///< per slot; null where no device step reads it
  std::vector<size_t> binding_;                         ///< per slot: index among inputs, outputs or states
  std::vector<void*> addresses_;              ///< operands and results of all steps, step after step
  std::vector<size_t> first_in_, first_out_;  ///< per step: where its operands and results begin
  std::vector<HostStep> host_steps_;          ///< per step; empty for those of the device
  std::vector<void*> host_args_;              ///< of the host step under way
  std::vector<StagedPart> in_, out_;          ///< places; those of the host are first in their region
  std::vector<StagedPart> staged_in_, staged_out_;
  int64_t inputs_at_ = 0, outputs_at_ = 0;  ///< in the arena
  int64_t in_bytes_ = 0, out_bytes_ = 0;    ///< of the whole regions
  int64_t in_staged_ = 0, out_staged_ = 0;  ///< of their parts of the host
  std::byte* arena_ = nullptr;
  std::shared_ptr<void> fault_;  ///< two words that kernels and the host see
  ir::RunStatus status_;         ///< of host steps
  std::unique_ptr<tensor::Recording> recording_;
  bool may_record_ = false, is_launching_ = false;
  int64_t runs_ = 0;
  size_t failed_step_ = 0;
  Communication communication_;
};

}  // namespace trireme::runtime

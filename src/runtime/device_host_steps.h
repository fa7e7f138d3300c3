// Steps of a device's program that have no kernel there: they run on the host, over copies of their operands.
#pragma once

#include <vector>

#include "backend/cpu/device/cpu_stream.h"
#include "runtime/device_operands.h"

namespace trireme::runtime {

/// Plans once which memory each such step moves; runs one at a time.
class DeviceHostSteps {
 public:
  /// What is given outlives it.
  DeviceHostSteps(const compile::Program& program, const DeviceOperands& operands, const DeviceBinding& on);

  /// Waits for `stream`, runs the step here, and sends its results before what follows there. What the kernel
  /// finds wrong with its data stands in `status`.
  void run(size_t step, tensor::Stream& stream, ir::RunStatus& status);

 private:
  /// Memory of the device that a step reads or writes, and its place in the host's.
  struct Moved {
    size_t place = 0;  ///< in DeviceOperands
    int64_t at = 0;    ///< in Staging::host()
    int64_t bytes = 0;
    bool is_read = false, is_written = false;
  };
  /// `from`: per operand and result an index into `moved`, or -1.
  struct HostStep {
    std::vector<Moved> moved;
    std::vector<int> from;
    std::vector<void*> fixed;  ///< per operand: the constant's content on the host
    int64_t workspace_at = 0;
  };
  HostStep plan(size_t step) const;

  const compile::Program& program_;
  const DeviceOperands& operands_;
  Staging& staging_;
  cpu::CpuStream stream_;
  std::vector<HostStep> steps_;  ///< per step; empty for those of the device
  std::vector<void*> args_;      ///< of the step under way
};

}  // namespace trireme::runtime

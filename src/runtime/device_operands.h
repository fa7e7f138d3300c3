// Where the operands and results of a program's steps lie on a device.
#pragma once

#include <memory>
#include <vector>

#include "compile/program.h"
#include "runtime/device_transfers.h"
#include "runtime/executor.h"

namespace trireme::runtime {

/// Addresses for all steps, made once for an arena. One copy of a constant on a device serves all programs
/// and instances of a model.
class DeviceOperands {
 public:
  /// Uploads the constants that steps of the device read and that are not there yet. `states`: addresses in
  /// the program's order. What is given outlives it.
  DeviceOperands(const compile::Program& program, std::vector<void*> states, const DeviceBinding& on,
                 const DeviceTransfers& transfers);

  /// After DeviceTransfers::bind_arena().
  void bind_arena(std::byte* arena);

  /// Operands and results stand side by side, step after step: places of a step's first of each.
  size_t first_in(size_t step) const { return first_in_[step]; }
  size_t first_out(size_t step) const { return first_out_[step]; }
  /// Address at a place; null for an operand that is absent, or that no step of the device reads.
  void* const* at(size_t place) const { return addresses_.data() + place; }

 private:
  void upload_constants(const DeviceBinding& on);
  void resolve(compile::SlotId id, size_t place, std::byte* arena);

  const compile::Program& program_;
  const DeviceTransfers& transfers_;
  std::vector<void*> states_;
  std::vector<std::shared_ptr<const void>> constants_;  ///< per slot; null where no device step reads it
  std::vector<size_t> binding_;                         ///< per slot: index among inputs, outputs or states
  std::vector<void*> addresses_;
  std::vector<size_t> first_in_, first_out_;
};

}  // namespace trireme::runtime

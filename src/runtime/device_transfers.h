// Inputs and results of one program on a device: where they lie, and their way there and back.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "compile/program.h"
#include "runtime/executor.h"
#include "runtime/staging.h"

namespace trireme::runtime {

/// Bytes up to the next place that anything of a device may begin at.
inline int64_t aligned_for_device(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// Two regions behind the program's arena: inputs, then results. In each, what comes from the host or goes
/// there lies first and moves in one piece through pinned memory; what is on the device already is copied
/// there.
class DeviceTransfers {
 public:
  /// What is given outlives it.
  DeviceTransfers(const compile::Program& program, const DeviceBinding& on);

  /// The program's arena, followed by the two regions.
  int64_t arena_bytes() const { return out_.at + out_.bytes; }
  void bind_arena(std::byte* arena) { arena_ = arena; }
  std::byte* input(size_t i) const { return arena_ + in_.at + in_.parts[i].offset; }
  std::byte* output(size_t i) const { return arena_ + out_.at + out_.parts[i].offset; }

  /// The caller's addresses for the run that begins, in the program's order.
  void take(std::span<const void* const> inputs, std::span<void* const> outputs);
  /// Orders the inputs' way before what follows on `stream`; see Staging::upload() for `turn`.
  void send(std::span<const void* const> inputs, tensor::Stream& stream, size_t turn = 0);
  /// Orders the results' way behind what was launched on `stream`.
  void fetch(std::span<void* const> outputs, tensor::Stream& stream);
  /// Hands those of the host out; after fetch() and a synchronized stream.
  void deliver();

  /// Whether all results stay on the device.
  bool keeps_outputs() const { return out_.staged.empty(); }
  /// Whether inputs go in stream order, so that what is under way does not read what is overwritten.
  bool sends_in_order() const { return Staging::fits_chunk(in_.staged_bytes); }

 private:
  struct Region {
    std::vector<StagedPart> parts;   ///< places of all, those of the host first
    std::vector<StagedPart> staged;  ///< of the host
    int64_t at = 0;                  ///< in the arena
    int64_t bytes = 0;               ///< of the whole
    int64_t staged_bytes = 0;        ///< of the host's part
  };
  static Region lay_out(const compile::Program& program, const std::vector<compile::SlotId>& slots,
                        const std::vector<bool>& there, int64_t at);

  const DeviceBinding& on_;
  Region in_, out_;
  std::byte* arena_ = nullptr;
};

}  // namespace trireme::runtime

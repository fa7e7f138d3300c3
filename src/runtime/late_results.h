// Small results of a device on their way to the host while the device goes on with the work behind them.
#pragma once

#include <array>
#include <memory>

#include "tensor/device.h"

namespace trireme::runtime {

/// Two results may be under way. One owner thread; nothing allocates after the constructor.
class LateResults {
 public:
  static constexpr size_t kSlots = 2;

  /// Of `bytes` each. Both outlive it. On the CPU results are the host's already, and nothing is copied.
  LateResults(tensor::Device& device, base::ThreadPool& pool, int64_t bytes);
  ~LateResults();

  /// Memory of the device for the result `slot`.
  std::byte* there(size_t slot) const { return static_cast<std::byte*>(there_[slot].get()); }
  /// The result `slot` is written by what was launched on `stream` so far.
  void mark(size_t slot, tensor::Stream& stream);
  /// Waits for what was marked, and for nothing behind it; then the result on the host, until the next
  /// fetch() of this slot.
  const std::byte* fetch(size_t slot);

 private:
  int64_t bytes_;
  std::array<std::shared_ptr<void>, kSlots> there_, here_;
  std::array<std::unique_ptr<tensor::Event>, kSlots> events_;
  std::unique_ptr<tensor::Stream> lane_;  ///< of the copies; null on the CPU
};

}  // namespace trireme::runtime

// Scratch memory of a session.
#pragma once

#include <cstdint>
#include <memory>

#include "tensor/device.h"

namespace trireme::engine {

/// Scratch memory shared by all programs of one session (they run one at a time). Grows; shrinks only by
/// trim().
class Arena {
 public:
  explicit Arena(tensor::Device& device) : device_(device) {}
  void* reserve(int64_t bytes);
  int64_t bytes() const { return bytes_; }
  /// Between runs: lets go of memory that took a large part of what the process may use, where that is tight.
  void trim();

 private:
  tensor::Device& device_;
  std::shared_ptr<void> memory_;
  int64_t bytes_ = 0;
};

}  // namespace trireme::engine

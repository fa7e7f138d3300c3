// The CPU's stream: kernels run at once on the caller and its thread pool.
#pragma once

#include "base/threads/thread_pool.h"
#include "tensor/device.h"

namespace trireme::cpu {

/// Runs launches immediately; the pool is the team kernels share their loops with.
class CpuStream final : public tensor::Stream {
 public:
  /// Borrows a pool that must outlive the stream.
  explicit CpuStream(base::ThreadPool& pool) : pool_(pool) {}
  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cpu; }
  void synchronize() override {}
  base::ThreadPool& pool() { return pool_; }

 private:
  base::ThreadPool& pool_;
};

/// The pool behind a CPU kernel's stream. The compiler only hands CPU kernels CPU streams.
inline base::ThreadPool& pool_of(tensor::Stream& stream) { return static_cast<CpuStream&>(stream).pool(); }

}  // namespace trireme::cpu

// The CPU as a device: host memory and streams over thread pools.
#pragma once

#include <memory>

#include "tensor/device.h"

namespace trireme::cpu {

/// Host memory; streams borrow the thread pool of whoever opens them.
class CpuDevice final : public tensor::Device {
 public:
  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cpu; }
  std::string describe() const override;
  std::shared_ptr<void> allocate(int64_t bytes) override;
  std::unique_ptr<tensor::Stream> open_stream(base::ThreadPool& pool) override;
};

}  // namespace trireme::cpu

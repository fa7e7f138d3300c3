// The stand-in's stream: what is launched runs on the caller, at once or when a recording is replayed.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/host_grid.h"

namespace trireme::cuda {

/// All memory of one stand-in. Locked, it cannot be touched.
class EmulatedMemory;

class EmulatedStream final : public CudaStream {
 public:
  explicit EmulatedStream(std::shared_ptr<EmulatedMemory> memory);

  /// Device work: the memory is within reach while it runs.
  void launch(std::function<void()> work);

  void synchronize() override;
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override;
  void begin_recording() override;
  std::unique_ptr<tensor::Recording> end_recording() override;

 private:
  void run(const std::function<void()>& work);

  std::shared_ptr<EmulatedMemory> memory_;
  bool is_recording_ = false;
  std::vector<std::function<void()>> recorded_;
};

}  // namespace trireme::cuda

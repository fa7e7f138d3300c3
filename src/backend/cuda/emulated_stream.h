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
  /// Blocks of a launch are shared out over the pool, which outlives the stream.
  EmulatedStream(std::shared_ptr<EmulatedMemory> memory, base::ThreadPool& pool);
  ~EmulatedStream() override;

  /// Device work, work(grid). From the first after a synchronize() until the next the memory is within reach.
  template <class Work>
  void launch(const Work& work) {
    if (is_recording_) return recorded_.emplace_back(work), void();
    reach();
    work(grid_);
  }

  void synchronize() override;
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override;
  void begin_recording() override;
  std::unique_ptr<tensor::Recording> end_recording() override;

 private:
  void reach();

  std::shared_ptr<EmulatedMemory> memory_;
  HostGrid grid_;
  bool is_recording_ = false, is_open_ = false;
  std::vector<std::function<void(HostGrid&)>> recorded_;
};

}  // namespace trireme::cuda
